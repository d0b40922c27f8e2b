// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <vector>

#include "headwise/core/head_id.hpp"

namespace headwise {

/// What one KV head holds. rows + folded + dropped = tokens seen.
struct head_report {
  head_id head;
  head_role role = head_role::local;
  std::size_t rows = 0;
  std::size_t folded = 0;   ///< rows that its summary stands for
  std::size_t dropped = 0;  ///< rows that left and that nothing stands for
  std::size_t row_bytes = 0;
  std::size_t slack_bytes = 0;    ///< of the rows that its pages have room for besides
  std::size_t reserve_bytes = 0;  ///< of rows that have left but stay for a rollback, not attended
  std::size_t summary_bytes = 0;
  std::size_t shared_bytes = 0;  ///< of rows, slack and reserve: in pages that copies of the cache have too
};

/// What a cache holds, per head and in total, beside what a cache of every row in the same format would hold.
struct cache_report {
  std::size_t tokens = 0;
  std::size_t rows = 0;
  std::size_t folded = 0;
  std::size_t dropped = 0;
  std::size_t row_bytes = 0;
  std::size_t slack_bytes = 0;
  std::size_t reserve_bytes = 0;
  std::size_t spare_bytes = 0;  ///< of arenas, which the heads of a layer share: used by no page, and gaps between rows
  std::size_t summary_bytes = 0;
  std::size_t shared_bytes = 0;  ///< part of the others; the spare bytes of arenas are shared besides
  std::size_t dense_bytes = 0;
  std::vector<head_report> heads;

  /// What the cache keeps from the system. Of copies that share pages, each counts them: together they hold what one
  /// of them does, and held_bytes() - shared_bytes - spare_bytes of each other.
  std::size_t held_bytes() const noexcept {
    return row_bytes + slack_bytes + reserve_bytes + spare_bytes + summary_bytes;
  }

  void add(const head_report& head) {
    heads.push_back(head);
    rows += head.rows;
    folded += head.folded;
    dropped += head.dropped;
    row_bytes += head.row_bytes;
    slack_bytes += head.slack_bytes;
    reserve_bytes += head.reserve_bytes;
    shared_bytes += head.shared_bytes;
    summary_bytes += head.summary_bytes;
  }
};

}  // namespace headwise
