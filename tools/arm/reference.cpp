// Executes a program N times on the reference runtime from PyPI's aarch64 wheel, on one thread; inputs are zeros.
//
//     reference MODEL.pte N
//
// `count.py` builds this program.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

// The wheel contains the library of this class, but not its header.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

int main(int count, char** arguments) {
  if (count != 3) {
    std::fprintf(stderr, "usage: reference MODEL.pte N\n");
    return 2;
  }
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(1);
  executorch::extension::Module module(arguments[1]);
  const auto meta = module.method_meta("forward");
  if (!meta.ok()) {
    std::fprintf(stderr, "the method does not load\n");
    return 1;
  }
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<executorch::runtime::EValue> inputs;
  for (size_t i = 0; i < meta->num_inputs(); ++i) {
    const auto info = meta->input_tensor_meta(i);
    if (!info.ok()) {
      std::fprintf(stderr, "input %zu is no tensor\n", i);
      return 1;
    }
    const std::vector<executorch::aten::SizesType> sizes(info->sizes().begin(), info->sizes().end());
    tensors.push_back(executorch::extension::zeros(sizes, info->scalar_type()));
    inputs.emplace_back(tensors.back());
  }
  for (int i = std::atoi(arguments[2]); i > 0; --i) {
    if (!module.forward(inputs).ok()) {
      std::fprintf(stderr, "an execution fails\n");
      return 1;
    }
  }
}
