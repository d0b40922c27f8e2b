// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <memory_resource>

namespace headwise {

/// What a cache is made with besides its policies.
struct cache_options {
  /// Tokens that truncate() can always take back, for engines that speculate: the rows that left last stay here, not
  /// attended, beside a second summary. What has been taken back is part of the reserve again once as many tokens have
  /// come. Costs that many rows (and a block, where the compensation folds in blocks) and a summary per local head, and
  /// folding twice.
  std::size_t rollback_reserve = 0;
  /// Where rows come from; null: from the system, in huge pages from 2 MiB on. It outlives the cache and its copies,
  /// and where layers or copies are used by several threads, so is this.
  std::pmr::memory_resource* memory = nullptr;
};

}  // namespace headwise
