#include "types.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <string>

#include "type_contents.h"

namespace compcoll {
namespace layer {

Predefined predefined[n_predefined];

namespace {

MpiFunction type_size("PMPI_Type_size"), type_size_c("PMPI_Type_size_c"), type_size_x("PMPI_Type_size_x"),
    type_get_name("PMPI_Type_get_name"), type_get_attr("PMPI_Type_get_attr"),
    type_set_attr("PMPI_Type_set_attr"), type_create_keyval("PMPI_Type_create_keyval"),
    type_get_extent("PMPI_Type_get_extent"), type_get_true_extent("PMPI_Type_get_true_extent"),
    send_init("PMPI_Send_init"), request_free("PMPI_Request_free");

std::atomic<uint64_t> n_types{0};

// -- derived datatypes

// A datatype's basic type, its bytes and the shape of its elements.
struct Parts {
  uint32_t element = 0;
  bool any = false;    // true if it has a basic type at all
  bool known = true;
  Piece piece = contiguous(0);
  bool shaped = true;
  std::vector<uint64_t> shape;
};

// Merges the basic types of `more` into those of `parts`.
void add_basics(Parts* parts, const Parts& more) {
  parts->known = parts->known && more.known;
  if (!more.any) return;
  parts->element = !parts->any || parts->element == more.element ? more.element : 0;
  parts->any = true;
}

Parts of_shape(Parts old, std::initializer_list<int64_t> counts, Piece piece) {
  std::vector<uint64_t> shape;
  for (int64_t n : counts)
    if (n != 1) shape.push_back(uint64_t(std::max<int64_t>(n, 0)));
  old.shape.insert(old.shape.begin(), shape.begin(), shape.end());
  old.piece = std::move(piece);
  return old;
}

int64_t extent_of(Word handle) {
  int64_t lower = 0, extent = 0;
  type_get_extent.call(handle, &lower, &extent);
  return extent;
}

Parts parts_of(Word handle);

Parts of_blocks(const Parts& old, int64_t extent, const std::vector<int64_t>& lengths,
                const std::vector<int64_t>& at) {
  Parts parts = old;
  parts.shaped = false;
  if (repeated(2, extent, old.piece).is_run()) {
    std::vector<int64_t> offsets;
    std::vector<uint64_t> nbytes;
    for (size_t i = 0; i < at.size(); i++) {
      offsets.push_back(at[i] + old.piece.offset);
      nbytes.push_back(uint64_t(std::max<int64_t>(lengths[i], 0)) * old.piece.nbytes());
    }
    parts.piece = joined_runs(offsets, nbytes);
    return parts;
  }
  std::vector<Piece> pieces;
  for (size_t i = 0; i < at.size(); i++) {
    bool again = i && lengths[i] == lengths[i - 1];
    pieces.push_back(again ? pieces.back() : repeated(lengths[i], extent, old.piece));
  }
  parts.piece = pieces.empty() ? contiguous(0) : joined(at, pieces);
  return parts;
}

Parts of_struct(const Contents& made) {
  const size_t n = size_t(made.numbers[0]);
  Parts parts;
  parts.shaped = false;
  std::vector<int64_t> at;
  std::vector<Piece> pieces;
  for (size_t i = 0; i < n; i++) {
    const int64_t length = made.numbers[1 + i];
    Parts one = parts_of(made.types[i]);
    at.push_back(made.numbers[1 + n + i]);
    pieces.push_back(repeated(length, extent_of(made.types[i]), one.piece));
    if (length > 0 && one.piece.nbytes()) add_basics(&parts, one);
  }
  parts.piece = pieces.empty() ? contiguous(0) : joined(at, pieces);
  return parts;
}

Parts of_subarray(const Contents& made, const Parts& old, int64_t extent) {
  const int64_t* numbers = made.numbers.data();
  const int64_t n = numbers[0];
  const int64_t *sizes = numbers + 1, *subsizes = sizes + n, *starts = subsizes + n;
  const bool fortran = starts[n] == library().order_fortran;
  Parts parts = old;
  for (int64_t k = 0; k < n; k++) {  // the fastest dimension first
    const int64_t i = fortran ? k : n - 1 - k;
    Piece piece = repeated(subsizes[i], extent, parts.piece);
    piece.offset += starts[i] * extent;
    parts = of_shape(parts, {subsizes[i]}, piece);
    extent *= sizes[i];
  }
  return parts;
}

// First indices and lengths of the blocks of an axis of `n` that belong to one of its processes.
void owned(int64_t n, int64_t distribution, int64_t argument, int64_t processes, int64_t place,
           std::vector<int64_t>* firsts, std::vector<int64_t>* counts) {
  if (distribution == library().distribute_none) {
    *firsts = {0}, *counts = {n};
    return;
  }
  int64_t block = argument;
  if (argument == library().distribute_default)
    block = distribution == library().distribute_block ? (n + processes - 1) / processes : 1;
  for (int64_t first = place * block; first < n; first += processes * block) {
    firsts->push_back(first);
    counts->push_back(std::min(block, n - first));
  }
}

Parts of_darray(const Contents& made, const Parts& old, int64_t extent) {
  const int64_t *numbers = made.numbers.data(), n = numbers[2];
  const int64_t *sizes = numbers + 3, *distributions = sizes + n, *arguments = distributions + n,
                *grid = arguments + n;
  const bool fortran = grid[n] == library().order_fortran;
  std::vector<int64_t> places(static_cast<size_t>(n));
  int64_t rest = numbers[1];
  for (int64_t i = n - 1; i >= 0; i--) {  // the grid of processes is always in C order
    places[size_t(i)] = rest % grid[i];
    rest /= grid[i];
  }
  Parts parts = old;
  for (int64_t k = 0; k < n; k++) {
    const int64_t i = fortran ? k : n - 1 - k;
    std::vector<int64_t> firsts, counts;
    owned(sizes[i], distributions[i], arguments[i], grid[i], places[size_t(i)], &firsts, &counts);
    std::vector<Piece> pieces;
    int64_t all = 0;
    for (size_t b = 0; b < firsts.size(); b++) {
      firsts[b] *= extent;
      pieces.push_back(repeated(counts[b], extent, parts.piece));
      all += counts[b];
    }
    parts = of_shape(parts, {all}, pieces.empty() ? contiguous(0) : joined(firsts, pieces));
    extent *= sizes[i];
  }
  return parts;
}

Parts of_contents(const Contents& made) {
  if (made.combiner == STRUCT) return of_struct(made);
  const Parts old = parts_of(made.types[0]);
  const int64_t extent = extent_of(made.types[0]);
  const int64_t* numbers = made.numbers.data();
  auto slice = [&](size_t first, int64_t n) {
    return std::vector<int64_t>(numbers + first, numbers + first + size_t(n));
  };
  auto scaled = [&](std::vector<int64_t> at) {
    for (int64_t& offset : at) offset *= extent;
    return at;
  };
  auto of_vector = [&](int64_t stride) {
    Piece block = repeated(numbers[1], extent, old.piece);
    return of_shape(old, {numbers[0], numbers[1]}, repeated(numbers[0], stride, block));
  };
  const int64_t n = made.numbers.empty() ? 0 : numbers[0];
  switch (made.combiner) {
    case DUP:
    case RESIZED: return old;
    case CONTIGUOUS: return of_shape(old, {n}, repeated(n, extent, old.piece));
    case VECTOR: return of_vector(numbers[2] * extent);
    case HVECTOR: return of_vector(numbers[2]);
    case INDEXED: return of_blocks(old, extent, slice(1, n), scaled(slice(size_t(1 + n), n)));
    case HINDEXED: return of_blocks(old, extent, slice(1, n), slice(size_t(1 + n), n));
    case INDEXED_BLOCK:
      return of_blocks(old, extent, std::vector<int64_t>(size_t(n), numbers[1]), scaled(slice(2, n)));
    case HINDEXED_BLOCK:
      return of_blocks(old, extent, std::vector<int64_t>(size_t(n), numbers[1]), slice(2, n));
    case SUBARRAY: return of_subarray(made, old, extent);
    case DARRAY: return of_darray(made, old, extent);
    default: return old;
  }
}

Parts of_type(const Type& type) {
  Parts parts;
  parts.element = type.element, parts.known = type.known, parts.any = true;
  parts.piece = type.piece, parts.shaped = type.shaped, parts.shape = type.shape;
  return parts;
}

const Type* attached(Word handle);

// Types with an overridden element type, by their names: Open MPI returns the contents of a type as
// duplicates without attributes, whose names are "Dup " and the name of the original.
std::map<std::string, const Type*>& overridden() {
  static auto all = new std::map<std::string, const Type*>;
  return *all;
}

std::string name_of(Word handle) {
  char name[1024] = {};
  int length = 0;
  type_get_name.call(handle, name, &length);
  return name;
}

const Type* duplicate_of_overridden(Word handle) {
  if (library().abi != Abi::open_mpi || overridden().empty()) return nullptr;
  std::string name = name_of(handle);
  if (name.rfind("Dup ", 0)) return nullptr;
  while (!name.rfind("Dup ", 0)) name.erase(0, 4);
  auto found = overridden().find(name);
  return found == overridden().end() ? nullptr : found->second;
}

Parts parts_of(Word handle) {
  if (const Predefined& entry = predefined_at(handle); entry.handle) return of_type(*entry.type);
  if (const Type* known = attached(handle)) return of_type(*known);
  if (const Type* known = duplicate_of_overridden(handle)) return of_type(*known);
  Contents made;
  Parts parts;
  if (!read(handle, &made)) {
    int size = 0;
    type_size.call(handle, &size);
    int64_t lower = 0, length = 0;
    type_get_true_extent.call(handle, &lower, &length);
    parts.any = true, parts.known = made.combiner == NAMED && length == size, parts.shaped = false;
    parts.piece = contiguous(uint64_t(std::max(size, 0)));
    return parts;
  }
  parts = of_contents(made);
  for (Word inner : made.types) release(inner);
  if (!parts.piece.nbytes()) {
    Parts nothing;
    nothing.shape = {0};
    return nothing;
  }
  return parts;
}

// -- attributes of datatypes

int drop(Word, int, void* value, void*) {
  delete static_cast<const Type*>(value);
  return 0;
}

int keyval() {
  static const int key = [] {
    int made = 0;
    type_create_keyval.call(&copy_no_attribute, &drop, &made, static_cast<void*>(nullptr));
    return made;
  }();
  return key;
}

const Type* attached(Word handle) {
  void* value = nullptr;
  int flag = 0;
  if (type_get_attr.call(handle, keyval(), &value, &flag) || !flag) return nullptr;
  return static_cast<const Type*>(value);
}

// True if a datatype is committed, which its envelope does not tell.
bool is_committed(Word handle) {
  const Library& mpi = library();
  static char never_read;
  Word made = mpi.request_null;
  if (send_init.call(&never_read, Word(1), handle, Word(int64_t(mpi.proc_null)), Word(0), mpi.comm_self,
                     &made))
    return false;
  request_free.call(&made);
  return true;
}

Type* flattened(Word handle) {
  Parts parts = parts_of(handle);
  auto type = new Type;
  type->id = ++n_types;
  type->element = parts.any ? parts.element : 0;
  type->known = parts.known, type->piece = parts.piece, type->nbytes = parts.piece.nbytes();
  type->shaped = parts.shaped, type->shape = parts.shape;
  int64_t lower = 0;
  type_get_extent.call(handle, &lower, &type->extent);
  type_get_true_extent.call(handle, &type->lower, &type->length);
  return type;
}

// Attaches a flattened type to its datatype, as an attribute; null if MPI cannot.
const Type* attach(Word handle, Type* type) {
  if (!type_set_attr.call(handle, keyval(), static_cast<void*>(type))) return type;
  delete type;
  return nullptr;
}

}  // namespace

void add_predefined(Word handle, uint64_t nbytes, uint32_t element, bool summable) {
  handle = library().handle_of(handle);
  Predefined& entry = predefined_at(handle);
  if (entry.handle) return;
  auto type = new Type;
  type->id = ++n_types;
  type->element = element, type->nbytes = nbytes, type->summable = summable, type->shaped = true;
  type->piece = contiguous(nbytes);
  type->extent = extent_of(handle);
  type_get_true_extent.call(handle, &type->lower, &type->length);
  type->known = type->length == int64_t(nbytes);  // else the datatype has a gap
  type->basic = type->extent == int64_t(nbytes);
  entry.nbytes = nbytes, entry.type = type;
  __atomic_store_n(&entry.handle, handle, __ATOMIC_RELEASE);
}

const Type* type_of(Word handle) {
  handle = library().handle_of(handle);
  if (const Predefined& entry = predefined_at(handle); entry.handle) return entry.type;
  if (handle == library().type_null) return nullptr;
  if (const Type* known = attached(handle)) return known;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);  // a type that another thread has attached is in use
  if (const Type* known = attached(handle)) return known;
  return is_committed(handle) ? attach(handle, flattened(handle)) : nullptr;
}

uint64_t nbytes_of_derived(Word handle) {
  int64_t size = 0;
  MpiFunction& of = type_size_c.exists() ? type_size_c : type_size_x;
  return handle == library().type_null || of.call(handle, &size) || size < 0 ? 0 : uint64_t(size);
}

bool override_element_type(Word handle, uint32_t element, Word sum, bool summable) {
  handle = library().handle_of(handle);
  Type* type = flattened(handle);
  type->element = element, type->own_sum = sum;
  type->basic = true, type->summable = summable;
  if (!attach(handle, type)) return false;
  overridden()[name_of(handle)] = type;
  return true;
}

}  // namespace layer
}  // namespace compcoll
