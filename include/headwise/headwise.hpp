// SPDX-License-Identifier: MIT
#pragma once

// Everything, in reading order:
// probe tokens -> the engine's Q and K -> head scores -> plan -> cache (append, attend, compress) -> fewer bytes, same
// answer.

#include "headwise/config.hpp"
#include "headwise/fwd.hpp"
#include "headwise/version.hpp"

// core: the words
#include "headwise/core/aligned_memory.hpp"
#include "headwise/core/attention_params.hpp"
#include "headwise/core/byte_stream.hpp"
#include "headwise/core/checksum.hpp"
#include "headwise/core/error.hpp"
#include "headwise/core/executor.hpp"
#include "headwise/core/file.hpp"
#include "headwise/core/head_id.hpp"
#include "headwise/core/head_plan.hpp"
#include "headwise/core/head_scores.hpp"
#include "headwise/core/model_shape.hpp"
#include "headwise/core/section.hpp"
#include "headwise/core/thread_pool.hpp"
#include "headwise/core/token_view.hpp"

// element: how a row is stored
#include "headwise/element/bfloat16.hpp"
#include "headwise/element/float16.hpp"
#include "headwise/element/float32.hpp"
#include "headwise/element/format.hpp"
#include "headwise/element/format_variant.hpp"

// kernel: what depends on the instruction set
#include "headwise/kernel/kernel.hpp"

// store: one head's rows
#include "headwise/store/chunk_memory.hpp"
#include "headwise/store/early_rows.hpp"
#include "headwise/store/head_rows.hpp"
#include "headwise/store/page_arena.hpp"
#include "headwise/store/page_layout.hpp"
#include "headwise/store/row_sums.hpp"
#include "headwise/store/run.hpp"

// policy: the questions a user may answer differently
#include "headwise/policy/bounded_compensation.hpp"
#include "headwise/policy/budget.hpp"
#include "headwise/policy/compensation.hpp"
#include "headwise/policy/compensation_variant.hpp"
#include "headwise/policy/element_ranges.hpp"
#include "headwise/policy/folded_ranges.hpp"
#include "headwise/policy/head_selection.hpp"
#include "headwise/policy/identity.hpp"
#include "headwise/policy/mean_compensation.hpp"
#include "headwise/policy/moment_compensation.hpp"
#include "headwise/policy/recipe.hpp"
#include "headwise/policy/when_to_compress.hpp"

// cache: append, compress, copy, report
#include "headwise/cache/cache_options.hpp"
#include "headwise/cache/cache_report.hpp"
#include "headwise/cache/gather.hpp"
#include "headwise/cache/kv_cache.hpp"
#include "headwise/cache/saved_state.hpp"
#include "headwise/cache/snapshot.hpp"

// attend: decode and chunks, over runs
#include "headwise/attend/attend.hpp"
#include "headwise/attend/attend_schedule.hpp"
#include "headwise/attend/certificate.hpp"
#include "headwise/attend/kept_attention.hpp"
#include "headwise/attend/mask.hpp"
#include "headwise/attend/received_attention.hpp"

// probe: which heads retrieve?
#include "headwise/probe/head_scorer.hpp"
#include "headwise/probe/repeated_tokens.hpp"
#include "headwise/probe/target_rules.hpp"

// profile: scores and plans on disk
#include "headwise/profile/metadata.hpp"
#include "headwise/profile/plan_file.hpp"
#include "headwise/profile/profile_file.hpp"
