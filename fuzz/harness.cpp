// The command line, the codecs that it names, and what a run says at its end.
#include "harness.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace fuzz {

static const Codec* const* table() { return levels()[0]->codecs; }

static std::vector<int> family;  // positions in the table; set once, from the command line

static int index_of(const std::string& name) {
  for (int i = 0; table()[i]; i++)
    if (table()[i]->name == name) return i;
  fprintf(stderr, "there is no codec %s\n", name.c_str());
  exit(2);
}

static bool always_all_levels = false;

Answers answers;

static void print_answers() {
  fprintf(stderr, "stat::encoded: %llu of %llu\n", answers.encoded, answers.encoded + answers.not_encoded);
  fprintf(stderr, "stat::decoded: %llu of %llu\n", answers.decoded, answers.decoded + answers.not_decoded);
}

// --codec=name,name: the codecs that this run is about; all of them without it. --levels=all.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  const std::string option = "--codec=";
  for (int i = 1; i < *argc; i++) {
    std::string names = (*argv)[i];
    always_all_levels |= names == "--levels=all";
    if (names.compare(0, option.size(), option)) continue;
    names = names.substr(option.size()) + ",";
    for (size_t at = 0, end; (end = names.find(',', at)) != names.npos; at = end + 1)
      family.push_back(index_of(names.substr(at, end - at)));
  }
  if (family.empty())
    for (int i = 0; table()[i]; i++) family.push_back(i);
  atexit(print_answers);
  return 0;
}

void require(bool kept, const char* promise) {
  if (kept) return;
  fprintf(stderr, "== a promise is not kept: %s\n", promise);
  abort();
}

int codec_index(const Header& header) { return family[header.codec % family.size()]; }

bool is_float(uint32_t dtype) { return dtype >= FLOAT16; }

const char* name_of(int codec) { return table()[codec]->name; }

bool is(int codec, const char* name) { return !strcmp(name_of(codec), name); }

bool is_blockscale(int codec) { return is(codec, "int8") || is(codec, "int4") || is(codec, "fp8"); }

bool is_lossless(int codec) { return is(codec, "raw") || is(codec, "mpc") || is(codec, "float"); }

bool has_fixed_size(int codec) { return is(codec, "raw") || is(codec, "zfp") || is(codec, "bfp") || is_blockscale(codec); }

int chosen_codec(uint64_t ordinal) {
  static const int codecs[] = {index_of("raw"), index_of("mpc"), index_of("float")};
  require(ordinal < 3, "the choice is one of three");
  return codecs[ordinal];
}

const std::vector<const Level*>& levels_for(const Header& h) {
  static const auto choices = [] {
    std::vector<std::vector<const Level*>> all(1);
    for (auto p = levels(); *p; p++) {
      all[0].push_back(*p);
      all.push_back({*p});
    }
    return all;
  }();
  const unsigned choice = h.dtype >> 4;
  if (always_all_levels || choice < 2) return choices[0];
  return choices[1 + choice % (choices.size() - 1)];
}

}  // namespace fuzz
