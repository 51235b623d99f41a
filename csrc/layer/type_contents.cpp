#include "type_contents.h"

#include "types.h"

namespace compcoll {
namespace layer {
namespace {

MpiFunction type_get_envelope("PMPI_Type_get_envelope"), type_get_contents("PMPI_Type_get_contents"),
    type_get_envelope_c("PMPI_Type_get_envelope_c"), type_get_contents_c("PMPI_Type_get_contents_c"),
    type_free("PMPI_Type_free");

Combiner combiner_of(int number) {
  for (int i = 0; i < n_combiners; i++)
    if (library().combiners[i] == number) return Combiner(i);
  return n_combiners;
}

// Integers, addresses and large counts in the order of the arguments.
std::vector<int64_t> in_order(Combiner combiner, const std::vector<int>& i, const std::vector<int64_t>& a,
                              const std::vector<int64_t>& c) {
  std::vector<int64_t> all(i.begin(), i.end());
  if (combiner == SUBARRAY && !c.empty()) {  // the dimensions, sizes, subsizes, starts, and the order
    all.insert(all.begin() + 1, c.begin(), c.end());
  } else if (combiner == DARRAY && !c.empty()) {  // size, rank, dimensions, global sizes, and the others
    all.insert(all.begin() + 3, c.begin(), c.end());
  } else {
    all.insert(all.end(), c.begin(), c.end());
    all.insert(all.end(), a.begin(), a.end());
  }
  return all;
}

// A datatype's combiner, and its numbers of integers, addresses, large counts and datatypes.
Combiner envelope_of(Word handle, int64_t n[4]) {
  int number = 0, few[3] = {};
  int error = type_get_envelope_c.exists() ? type_get_envelope_c.call(handle, n, n + 1, n + 2, n + 3, &number)
                                           : type_get_envelope.call(handle, few, few + 1, few + 2, &number);
  if (!type_get_envelope_c.exists()) n[0] = few[0], n[1] = few[1], n[2] = 0, n[3] = few[2];
  return error ? n_combiners : combiner_of(number);
}

bool is_derived(Combiner combiner) { return combiner != NAMED && combiner != n_combiners; }

}  // namespace

bool read(Word handle, Contents* made) {
  int64_t n[4] = {};
  made->combiner = envelope_of(handle, n);
  if (!is_derived(made->combiner)) return false;
  const uint32_t width = library().handle_nbytes();
  std::vector<int> integers(static_cast<size_t>(n[0]));
  std::vector<int64_t> addresses(static_cast<size_t>(n[1])), counts(static_cast<size_t>(n[2]));
  std::vector<char> handles(static_cast<size_t>(n[3]) * width);
  int error = type_get_contents_c.exists()
                  ? type_get_contents_c.call(handle, n[0], n[1], n[2], n[3], integers.data(),
                                             addresses.data(), counts.data(), handles.data())
                  : type_get_contents.call(handle, int(n[0]), int(n[1]), int(n[3]), integers.data(),
                                           addresses.data(), handles.data());
  if (error) return false;
  made->numbers = in_order(made->combiner, integers, addresses, counts);
  for (int64_t i = 0; i < n[3]; i++) made->types.push_back(library().handle_at(handles.data() + i * width));
  return true;
}

void release(Word handle) {
  int64_t n[4] = {};
  if (predefined_at(handle).handle || !is_derived(envelope_of(handle, n))) return;
  Word place;
  library().put_handle(handle, &place);
  type_free.call(&place);
}

}  // namespace layer
}  // namespace compcoll
