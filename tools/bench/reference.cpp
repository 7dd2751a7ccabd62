// Runs a program on the reference runtime from pip's `executorch`, without Python or PyTorch.
//
//     reference MODEL.pte THREADS SECONDS [DATA.ptd]
//
// Prints one JSON object: load_ms and first_ms (wall-clock), min_ms and median_ms of executions during SECONDS
// (omitted if 0), and peak_mib of the process. Inputs are zeros.
// `beside.py` builds this program.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// The wheel contains the library of this class, but not its header.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t threads);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool

using Clock = std::chrono::steady_clock;
using executorch::runtime::EValue;
using executorch::runtime::Tag;

static double since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

template <class T>
static T must(executorch::runtime::Result<T> result, const char* what) {
  if (!result.ok()) {
    std::fprintf(stderr, "%s: error 0x%x\n", what, static_cast<int>(result.error()));
    std::exit(1);
  }
  return std::move(result.get());
}

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "usage: reference MODEL.pte THREADS SECONDS [DATA.ptd]\n");
    return 2;
  }
  // The pool starts with one thread per CPU on first use; resize it before the program is loaded.
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(std::atoi(arguments[2]));
  const double seconds = std::atof(arguments[3]);
  const auto start = Clock::now();
  std::vector<std::string> data(arguments + 4, arguments + count);
  executorch::extension::Module module(arguments[1], data);
  auto meta = must(module.method_meta("forward"), "load");
  if (module.load_method("forward") != executorch::runtime::Error::Ok) {
    std::fprintf(stderr, "the method does not load\n");
    return 1;
  }
  const double load = since(start);

  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const Tag tag = must(meta.input_tag(i), "input");
    if (tag == Tag::Int) {
      inputs.emplace_back(static_cast<int64_t>(0));
      continue;
    }
    if (tag != Tag::Tensor) {
      std::fprintf(stderr, "input %zu is no tensor and no integer\n", i);
      return 1;
    }
    const auto info = must(meta.input_tensor_meta(i), "input");
    const std::vector<executorch::aten::SizesType> sizes(info.sizes().begin(), info.sizes().end());
    tensors.push_back(executorch::extension::zeros(sizes, info.scalar_type()));
    inputs.emplace_back(tensors.back());
  }

  auto begin = Clock::now();
  must(module.forward(inputs), "first");
  const double first = since(begin);
  std::vector<double> times;
  const auto run = Clock::now();
  while (seconds > 0 && (times.size() < 3 || since(run) < seconds * 1e3)) {
    begin = Clock::now();
    must(module.forward(inputs), "execute");
    times.push_back(since(begin));
  }
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  std::printf("{\"load_ms\": %.6f, \"first_ms\": %.6f, \"peak_mib\": %.3f", load, first, usage.ru_maxrss / 1024.0);
  if (!times.empty()) {
    std::sort(times.begin(), times.end());
    std::printf(", \"min_ms\": %.6f, \"median_ms\": %.6f", times.front(), times[times.size() / 2]);
  }
  std::printf("}\n");
}
