// Rows of a Transformer's caches over other rows, in place, as a beam does it: layers/transformer/cached_rows.py.
//
// Two rows agree up to the first token in which they differ, or nowhere if they read different inputs. Only later slots are copied.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

namespace seqloom {

struct CachedRows { // as `CachedRowsArguments` in cached_rows.py
  uint8_t* const* parts;         // keys and values of each layer: (rows, heads, slots, head_bytes) each
  long part_count, rows, heads, slots, head_bytes;
  long *tokens, tokens_stride;   // the ids in the slots
  const long* inputs;            // (rows,): what each row reads; null: nothing
  const long* order;             // (kept,): row k becomes what row order[k] was
  long kept, length;             // length: slots that are filled

  // False where there is no such row; then nothing was done.
  bool operator()() const {
    struct Copy {
      long from, to, first;
    };
    std::vector<Copy> copies;
    long largest = 0;
    for (long row = 0; row < kept; row++) {
      const long from = order[row];
      if (from < 0 || from >= rows || kept > rows) return false;
      if (from == row) continue;
      long first = 0;
      if (!inputs || inputs[from] == inputs[row])
        while (first < length && tokens[from * tokens_stride + first] == tokens[row * tokens_stride + first]) first++;
      if (first < length) copies.push_back({from, row, first});
      largest += (length - first) * heads * head_bytes;
    }
    // all is read before any is written
    std::vector<uint8_t> read(largest);
    for (long part = 0; part < part_count; part++) {
      for (const bool writes : {false, true}) {
        uint8_t* at = read.data();
        for (const Copy& copy : copies)
          for (long head = 0; head < heads; head++) {
            uint8_t* const slot = parts[part] + (((writes ? copy.to : copy.from) * heads + head) * slots + copy.first) * head_bytes;
            const long size = (length - copy.first) * head_bytes;
            std::memcpy(writes ? slot : at, writes ? at : slot, size);
            at += size;
          }
      }
    }
    std::vector<long> ids;
    for (const Copy& copy : copies) ids.insert(ids.end(), tokens + copy.from * tokens_stride + copy.first, tokens + copy.from * tokens_stride + length);
    const long* id = ids.data();
    for (const Copy& copy : copies) {
      std::memcpy(tokens + copy.to * tokens_stride + copy.first, id, (length - copy.first) * sizeof(long));
      id += length - copy.first;
    }
    return true;
  }
};

} // namespace seqloom
