// SPDX-License-Identifier: MIT
#pragma once

// Every public name, declared once. Default template arguments and aliases are stated here and nowhere else.

#include <cstdint>

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

// element
struct float32;
struct float16;
struct bfloat16;
template <class... Formats>
class format_variant;
using any_format = format_variant<float32, float16, bfloat16>;

// store
struct run;
struct page_layout;
class page_arena;
template <class Format>
class head_rows;

// policy
enum class when_to_compress : std::uint8_t;
struct razor_budget;
struct fixed_budget;
struct unlimited_budget;
struct no_compensation;
struct mean_compensation;
struct moment_compensation;
template <class... Compensations>
class compensation_variant;
using any_compensation = compensation_variant<mean_compensation, no_compensation, moment_compensation>;
struct all_heads;
struct retrieval_heads;
struct combined_heads;
struct recipe;

// cache
struct head_report;
struct cache_report;
template <class Format = float16, class Budget = razor_budget, class Compensation = mean_compensation>
class kv_cache;
template <class Format = float16, class Budget = razor_budget, class Compensation = mean_compensation>
kv_cache<Format, Budget, Compensation> make_cache(head_plan plan, Budget budget = Budget{},
                                                  Compensation compensation = Compensation{},
                                                  when_to_compress when = when_to_compress{}, Format format = Format{});

// attend
class attend_schedule;

// probe
struct vocabulary;
class repeated_tokens;
struct echo;
struct induction;
template <class... Rules>
class head_scorer;

// profile
struct plan_file;

}  // namespace headwise
