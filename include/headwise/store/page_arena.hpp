// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <utility>
#include <vector>

#include "headwise/config.hpp"
#include "headwise/store/chunk_memory.hpp"

namespace headwise {
inline namespace HEADWISE_ISA {

/// Hands out pages of one size from chunks of memory, and gives a chunk back to the system when its last page is
/// returned. Pages never move. Chunks grow with the arena, from 64 KiB to 512 KiB and to at most a sixteenth of it, so
/// that a small cache holds little that it does not use; from 16 MiB on they have 2 MiB, the size of a huge page. A
/// layer's local heads have an arena of their own: retrieval heads, which return nothing, would keep all its chunks in
/// use. Copies of a cache share an arena and many of its pages, so it may be used by several threads at once; it
/// outlives its pages.
class page_arena {
  struct chunk;

 public:
  static constexpr std::size_t smallest_chunk = std::size_t{64} << 10;
  static constexpr std::size_t largest_chunk = detail::chunk_memory::huge_page;

  /// A page in use, returned to its arena when the last handle to it goes; a copy is another handle to the same page.
  /// What it holds at first is not defined.
  class page {
   public:
    page() noexcept = default;
    page(const page& other) noexcept : chunk_(other.chunk_), data_(other.data_) {
      if (chunk_ != nullptr) chunk_->handles_of(data_).fetch_add(1, std::memory_order_relaxed);
    }
    page(page&& other) noexcept
        : chunk_(std::exchange(other.chunk_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
    page& operator=(const page& other) noexcept { return *this = page(other); }
    page& operator=(page&& other) noexcept {  // not by value: see shared_value
      page taken(std::move(other));
      std::swap(chunk_, taken.chunk_);
      std::swap(data_, taken.data_);
      return *this;
    }
    ~page() {
      if (chunk_ != nullptr && chunk_->handles_of(data_).fetch_sub(1, std::memory_order_acq_rel) == 1)
        chunk_->arena->release(*chunk_, data_);
    }
    std::byte* data() const noexcept { return data_; }
    /// Whether another handle has it too; if not, it may be written to.
    bool shared() const noexcept { return chunk_->handles_of(data_).load(std::memory_order_acquire) != 1; }

   private:
    friend class page_arena;
    page(chunk& from, std::byte* data) noexcept : chunk_(&from), data_(data) {}

    chunk* chunk_ = nullptr;
    std::byte* data_ = nullptr;
  };

  /// `page_bytes` is a multiple of 64. `taken_together`: pages that are usually taken at the same time, one for each
  /// head; a chunk has room for at least as many. `number`: of the arena among those that grow at the same pace, one
  /// for each layer; each of 16 takes its chunks of 2 MiB, which stall whoever touches them first, at another time.
  /// `memory`: where chunks come from; null: from the system (store/chunk_memory.hpp).
  explicit page_arena(std::size_t page_bytes, std::size_t taken_together = 1, std::size_t number = 0,
                      std::pmr::memory_resource* memory = nullptr) noexcept
      : memory_(memory),
        page_bytes_(page_bytes),
        least_pages_((std::max)(std::size_t{1}, taken_together)),
        stagger_bytes_(number % 16 * (largest_chunk / 16)) {
    HEADWISE_ASSERT(page_bytes != 0 && page_bytes % detail::chunk_memory::line == 0);
  }
  page_arena(const page_arena&) = delete;
  page_arena& operator=(const page_arena&) = delete;
  ~page_arena() { HEADWISE_ASSERT(pages_ == 0); }

  /// A page on a 64-byte boundary. Used chunks come before new ones, the oldest first, so that the others can empty.
  /// May throw std::bad_alloc; then nothing has changed.
  page take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (first_open_ < chunks_.size() && chunks_[first_open_]->full()) ++first_open_;
    if (first_open_ == chunks_.size()) add_chunk();
    chunk& from = *chunks_[first_open_];
    std::byte* data = from.returned;
    if (data != nullptr)
      std::memcpy(&from.returned, data, link_bytes);
    else
      data = from.memory.data() + from.fresh++ * page_bytes_;
    ++from.used;
    ++pages_;
    from.handles_of(data).store(1, std::memory_order_relaxed);
    return page(from, data);
  }

  std::pmr::memory_resource* memory() const noexcept { return memory_; }
  std::size_t page_bytes() const noexcept { return page_bytes_; }
  std::size_t pages() const noexcept {  ///< in use
    const std::lock_guard<std::mutex> lock(mutex_);
    return pages_;
  }
  std::size_t held_bytes() const noexcept {  ///< of chunks, whatever uses them
    const std::lock_guard<std::mutex> lock(mutex_);
    return held_bytes_;
  }

  /// Gives the spare chunk back as well.
  void trim() noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (spare_) held_bytes_ -= spare_->memory.bytes();
    spare_.reset();
  }

 private:
  static constexpr std::size_t link_bytes = sizeof(std::byte*);

  struct chunk {
    chunk(page_arena& of, std::size_t bytes)
        : arena(&of),
          memory(bytes, of.memory_),
          pages(bytes / of.page_bytes_),
          handles(std::make_unique<std::atomic<std::uint32_t>[]>(pages)) {}
    bool full() const noexcept { return used == pages; }
    std::atomic<std::uint32_t>& handles_of(const std::byte* page) noexcept {
      return handles[static_cast<std::size_t>(page - memory.data()) / arena->page_bytes_];
    }

    page_arena* arena;
    detail::chunk_memory memory;
    std::size_t pages;                                      // that fit
    std::unique_ptr<std::atomic<std::uint32_t>[]> handles;  // of each page in use
    std::size_t used = 0;
    std::size_t fresh = 0;          // pages from here on were never used, and perhaps never touched
    std::byte* returned = nullptr;  // a list of pages to use again; each begins with the address of the next
    std::size_t index = 0;          // in chunks_
  };

  std::size_t next_chunk_bytes() noexcept {
    std::size_t bytes = smallest_chunk;
    while (bytes < largest_chunk && 32 * bytes <= held_bytes_) bytes *= 2;
    if (bytes > largest_chunk / 4) bytes = largest_chunk;  // a huge page is worth an eighth of the arena
    if (bytes == largest_chunk && stagger_bytes_ != 0) bytes = std::exchange(stagger_bytes_, 0);
    const std::size_t fitting = (std::max)(least_pages_, bytes / page_bytes_) * page_bytes_;
    if (fitting <= largest_chunk && bytes < largest_chunk) return fitting;
    return (fitting + largest_chunk - 1) / largest_chunk * largest_chunk;
  }

  void add_chunk() {
    if (!spare_) {
      spare_ = std::make_unique<chunk>(*this, next_chunk_bytes());
      held_bytes_ += spare_->memory.bytes();
    }
    chunks_.emplace_back();  // where it throws, the new chunk stays as a spare
    chunks_.back() = std::move(spare_);
    chunks_.back()->index = chunks_.size() - 1;
  }

  void release(chunk& from, std::byte* data) noexcept {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::memcpy(data, &from.returned, link_bytes);
    from.returned = data;
    --from.used;
    --pages_;
    first_open_ = (std::min)(first_open_, from.index);
    if (from.used == 0) retire(from.index);
  }

  /// An empty chunk goes back - but the largest stays as a spare: the heads of a window that slides take a page each
  /// and soon return one, and at an unlucky count a chunk would come and go, with all its page faults, every 64 tokens.
  /// One is enough, since it holds a page for each of them.
  void retire(std::size_t index) noexcept {
    std::unique_ptr<chunk> empty = std::move(chunks_[index]);
    chunks_.erase(chunks_.begin() + static_cast<std::ptrdiff_t>(index));
    for (std::size_t i = index; i < chunks_.size(); ++i) chunks_[i]->index = i;
    if (!spare_ || spare_->memory.bytes() < empty->memory.bytes()) std::swap(spare_, empty);
    if (empty) held_bytes_ -= empty->memory.bytes();
  }

  mutable std::mutex mutex_;
  std::pmr::memory_resource* memory_;
  std::size_t page_bytes_;
  std::size_t least_pages_;    // of a chunk
  std::size_t stagger_bytes_;  // of one chunk before the first of 2 MiB
  std::size_t pages_ = 0;
  std::size_t held_bytes_ = 0;
  std::size_t first_open_ = 0;  // chunks before it are full
  std::vector<std::unique_ptr<chunk>> chunks_;
  std::unique_ptr<chunk> spare_;  // empty
};

}  // namespace HEADWISE_ISA
}  // namespace headwise
