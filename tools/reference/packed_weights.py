"""Packs weights with torchao's own functions for machines other than ARM, which are C++ headers: they are compiled when
they are first used. Needs g++ and torchao's sources (https://github.com/pytorch/ao, 0.15 or later)."""

import ctypes
import pathlib
import subprocess
import tempfile

import torch

SOURCE = r"""
#include <stdexcept>
#include <torchao/csrc/cpu/torch_free_kernels/fallback/embedding/embedding.h>
#include <torchao/csrc/cpu/torch_free_kernels/weight_packing/weight_packing.h>

namespace packing = torchao::weight_packing;
namespace bits = torchao::kernels::cpu::fallback::bitpacking::internal;

#define EACH(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8)
#define FUNCTIONS(b) \
  extern "C" void linear##b(char* out, int n, int k, int group, const int8_t* q, const float* scales, \
                            const int8_t* zeros, const float* bias) { \
    packing::pack_weights<b, 8, 16, 2>(out, n, k, group, q, scales, zeros, bias, 8, 16, 2); \
  } \
  extern "C" void embedding##b(char* out, int rows, int width, const int8_t* q) { \
    for (int i = 0; i < rows; i++) \
      torchao::kernels::cpu::fallback::embedding::pack_embedding_weight_qvals<b>(out, width, q, i); \
  } \
  extern "C" void tile##b(uint8_t* out, const uint8_t* values) { \
    uint8_t packed[128]; \
    packing::pack_values(packed, values, 4, 32, 8); \
    bits::pack_128_uint_values<b>(out, packed); \
  }
EACH(FUNCTIONS)

extern "C" long linear_bytes(int n, int k, int group, int b, bool zeros, bool bias) {
  return packing::packed_weights_size(n, k, group, b, zeros, bias, 8, 16, 2);
}
"""


def header(kind, *params):
    """The first 64 bytes of packed weights: `PackedWeightsHeader` of torchao."""
    words = [6712, kind, *(int(p) for p in params)]
    return torch.tensor(words + [0] * (16 - len(words)), dtype=torch.int32).view(torch.int8)


def address(tensor):
    return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


class Packer:
    def __init__(self, source):
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "pack.cpp").write_text(SOURCE)
        library = folder / "pack.so"
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{source}", "-o", library, folder / "pack.cpp"]
        subprocess.run(command, check=True)
        self.library = ctypes.CDLL(str(library))
        self.library.linear_bytes.restype = ctypes.c_long

    def linear(self, bits, q, scales, zeros=None, bias=None):
        """Weights `[n, k]` of a product, with scales `[n, groups]`."""
        (n, k), groups = q.shape, scales.shape[1]
        size = self.library.linear_bytes(n, k, k // groups, bits, zeros is not None, bias is not None)
        out = torch.zeros(size, dtype=torch.int8)
        pack = getattr(self.library, f"linear{bits}")
        pack(address(out), n, k, k // groups, address(q), address(scales), address(zeros), address(bias))
        return torch.cat([header(1, bits, zeros is not None, bias is not None, 8, 16, 2), out])

    def embedding(self, bits, q):
        """A table of embeddings, `[rows, width]`."""
        out = torch.zeros(q.shape[0] * q.shape[1] * bits // 8, dtype=torch.int8)
        getattr(self.library, f"embedding{bits}")(address(out), *q.shape, address(q))
        return torch.cat([header(2, 1, bits, 32, 128), out])

    def groupwise(self, bits, indices, tables, table_group, scales=None, bias=None):
        """Indices `[n, k]` into tables of float32, in the order of the comment on `pack_weights` in torchao's
        `groupwise_lowbit_weight/pack_weights.h`, which itself needs ARM."""
        n, k = indices.shape
        group = k if scales is None else k // scales.shape[1]
        parts = [header(5, bits, group, table_group, scales is not None, bias is not None, 4, 32, 8)]
        rows = torch.nn.functional.pad(indices, (0, 0, 0, -n % 4))
        add = lambda t, width: parts.append(torch.nn.functional.pad(t, (0, width - t.numel())).contiguous().view(torch.int8))
        for first in range(0, n, 4):
            add(tables[first * k // table_group], 16)
            for column in range(0, k, 32):
                if scales is not None and column % group == 0:
                    add(scales[first : first + 4, column // group], 4)
                tile, out = rows[first : first + 4, column : column + 32].contiguous(), torch.zeros(16 * bits, dtype=torch.int8)
                getattr(self.library, f"tile{bits}")(address(out), address(tile))
                parts.append(out)
            if bias is not None:
                add(bias[first : first + 4], 4)
        return torch.cat(parts)
