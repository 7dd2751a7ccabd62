// A plugin of qemu-aarch64 that counts the instructions a process executes, by class, and prints them as a JSON object to
// the file that `out=FILE` names, or to stderr.
//
//     cc -O2 -fPIC -shared -o count.so count.c
//     qemu-aarch64 -plugin ./count.so,out=counts.json PROGRAM
//
// Counts are exact for processes of one thread. `count.py` builds and uses this.
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What is used of the interface of plugins, version 1: Debian's QEMU comes without the header.
#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = 1;
typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_info;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
enum { ADD_TO_COUNTER = 0 };

enum { FMA, FMA_SCALAR, DOT, MATRIX, WIDENING, OTHER_VECTOR, VECTOR_LOAD, VECTOR_STORE, LOAD, STORE, BRANCH, OTHER, CLASSES };
static const char *const names[CLASSES] = {
    "fma", "fma_scalar", "dot", "matrix", "widening", "other_vector", "vector_load", "vector_store", "load", "store", "branch", "other",
};

// The class of an instruction, by the tables of the Arm Architecture Reference Manual, section C4.1.
static int class_of(uint32_t word) {
  const uint32_t group = word >> 25 & 15;
  if ((group & 7) == 7) {
    if ((word & 0xff000000) == 0x1f000000) return FMA_SCALAR;
    // fmla, fmls: three vectors, or by element.
    if ((word & 0xbf20fc00) == 0x0e20cc00 || (word & 0xbf80b400) == 0x0f801000) return FMA;
    // sdot, udot, usdot; the same by element, and sudot.
    if ((word & 0x9f20f400) == 0x0e009400 || (word & 0x9f00f400) == 0x0f00e000 || (word & 0xbf00f400) == 0x0f00f000) return DOT;
    // smmla, ummla, usmmla.
    if ((word & 0xdfe0f400) == 0x4e80a400) return MATRIX;
    // smull, smlal, smlsl, sadalp, saddw and their kin; smull, smlal by element.
    if ((word & 0x9f20cc00) == 0x0e20c000 || (word & 0x9f20dc00) == 0x0e208000 || (word & 0x9f3ffc00) == 0x0e206800 ||
        (word & 0x9f20dc00) == 0x0e201000 || (word & 0x9f003400) == 0x0f002000)
      return WIDENING;
    return OTHER_VECTOR;
  }
  if ((group & 5) == 4) {
    const bool vector = word >> 26 & 1;
    bool load = word >> 22 & 1;
    if ((word & 0x3b000000) == 0x18000000) load = true;                                   // from a literal
    if ((word & 0x3a000000) == 0x38000000 && !vector) load = (word >> 22 & 3) != 0;       // sign-extending, too
    return vector ? (load ? VECTOR_LOAD : VECTOR_STORE) : (load ? LOAD : STORE);
  }
  return (group & 14) == 10 ? BRANCH : OTHER;
}

struct block {
  uint64_t runs;
  uint32_t counts[CLASSES];
  struct block *next;
};
static struct block *blocks;
static const char *path;

static void translated(plugin_id id, struct qemu_plugin_tb *tb) {
  (void)id;
  struct block *block = calloc(1, sizeof *block);
  if (!block) abort();
  for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); ++i) {
    uint32_t word;
    memcpy(&word, qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i)), sizeof word);
    block->counts[class_of(word)]++;
  }
  block->next = blocks;
  blocks = block;
  qemu_plugin_register_vcpu_tb_exec_inline(tb, ADD_TO_COUNTER, &block->runs, 1);
}

static void finish(plugin_id id, void *data) {
  (void)id, (void)data;
  uint64_t total = 0, counts[CLASSES] = {0};
  for (const struct block *block = blocks; block; block = block->next)
    for (int i = 0; i < CLASSES; ++i) {
      counts[i] += block->runs * block->counts[i];
      total += block->runs * block->counts[i];
    }
  FILE *out = path ? fopen(path, "w") : stderr;
  if (!out) abort();
  fprintf(out, "{\"total\": %" PRIu64, total);
  for (int i = 0; i < CLASSES; ++i) fprintf(out, ", \"%s\": %" PRIu64, names[i], counts[i]);
  fprintf(out, "}\n");
  if (path) fclose(out);
}

EXPORT int qemu_plugin_install(plugin_id id, const struct qemu_info *info, int count, char **arguments) {
  (void)info;
  for (int i = 0; i < count; ++i)
    if (!strncmp(arguments[i], "out=", 4)) path = strdup(arguments[i] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, finish, NULL);
  return 0;
}
