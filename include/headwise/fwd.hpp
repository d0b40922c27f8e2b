// SPDX-License-Identifier: MIT
#pragma once

// Every public name, declared once. What computes with rows is named after the instruction set of the file that
// includes it (config.hpp), so that files with different -m flags may meet in one program. Default template arguments
// and aliases are stated here and nowhere else.

#include <cstdint>

#include "headwise/config.hpp"

namespace headwise {

// core
class error;
struct model_shape;
struct head_id;
class head_plan;
class head_scores;
struct attention_params;
struct token_view;
struct output_view;
struct serial;
class thread_pool;
class memory_sink;
class memory_source;
class counting_sink;
class file_sink;
class file_source;
inline namespace HEADWISE_ISA {
class checksum;
}

// element
inline namespace HEADWISE_ISA {
struct float32;
struct float16;
struct bfloat16;
template <class... Formats>
class format_variant;
using any_format = format_variant<float32, float16, bfloat16>;
}  // namespace HEADWISE_ISA

// store
struct run;
struct page_layout;
inline namespace HEADWISE_ISA {
class page_arena;
template <class Format>
class head_rows;
}  // namespace HEADWISE_ISA

// policy
enum class when_to_compress : std::uint8_t;
struct razor_budget;
struct fixed_budget;
struct unlimited_budget;
inline namespace HEADWISE_ISA {
struct no_compensation;
struct mean_compensation;
struct moment_compensation;
class folded_ranges;
template <class Compensation>
class bounded_compensation;
template <class... Compensations>
class compensation_variant;
using any_compensation = compensation_variant<mean_compensation, no_compensation, moment_compensation>;
}  // namespace HEADWISE_ISA
struct all_heads;
struct retrieval_heads;
struct combined_heads;
struct recipe;

// cache
struct head_report;
struct cache_report;
struct cache_options;
enum class other_rows : std::uint8_t;
inline namespace HEADWISE_ISA {
template <class Format = float16, class Budget = razor_budget, class Compensation = mean_compensation>
class kv_cache;
template <class Format = float16, class Budget = razor_budget, class Compensation = mean_compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget = Budget{},
                                                  Compensation compensation = Compensation{},
                                                  when_to_compress when = when_to_compress{}, Format format = Format{});
template <class Format = float16, class Budget, class Compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget, Compensation compensation,
                                                  when_to_compress when, Format format, const cache_options& options);
}  // namespace HEADWISE_ISA

// attend
struct causal;
struct windowed;
struct prefix_lm;
inline namespace HEADWISE_ISA {
class received_attention;
struct attention_extras;
class attend_schedule;
}  // namespace HEADWISE_ISA

// probe
struct vocabulary;
class repeated_tokens;
struct echo;
struct induction;
inline namespace HEADWISE_ISA {
template <class... Rules>
class head_scorer;
}  // namespace HEADWISE_ISA

// profile
struct plan_file;

}  // namespace headwise
