#!/usr/bin/env bash
# Measures the BEF executor through the command line: writes each program as MLIR text, translates it, runs
# it a few times and prints the smallest time of each.
#
#   tools/bench/bef_executor.sh target/release/pteron [RUNS]
set -euo pipefail
pteron=$(realpath "$1")
runs=${2:-5}
cd "$(mktemp -d)"
trap 'rm -r "$PWD"' EXIT

# Prints a function with a benchmark. Arguments: name, number of runs; the body is read from stdin. `%c` is the constant 1.
benchmark() {
    printf 'func.func @bench_%s() -> !tfrt.chain {\n  %%c = tfrt.constant.i32 1\n' "$1"
    printf '  %%r = tfrt_test.benchmark "%s"(%%c : i32) duration_secs = 5, max_count = %s, num_warmup_runs = 3 {\n' "$1" "$2"
    cat
    printf '  }\n  tfrt.return %%r : !tfrt.chain\n}\n'
}

# A chain of $1 additions, each of which reads the result of the one before.
chain() {
    awk -v n="$1" 'BEGIN { print "%x0 = tfrt.add.i32 %c, %c"
        for (i = 1; i < n; i++) printf "%%x%d = tfrt.add.i32 %%x%d, %%c\n", i, i - 1
        printf "tfrt.return %%x%d : i32\n", n - 1 }'
}

# $1 independent kernels ($2: the text of one, $3: the type of its result), and one that waits for all of them.
wide() {
    awk -v n="$1" -v kernel="$2" -v type="$3" 'BEGIN { list = ""
        for (i = 0; i < n; i++) {
            printf "%%x%d = %s\n", i, kernel
            list = list (i ? ", " : "") "%x" i; types = types (i ? ", " : "") type
        }
        printf "%%m = \"tfrt.merge.chains\"(%s) : (%s) -> !tfrt.chain\ntfrt.return %%m : !tfrt.chain\n", list, types }'
}

{
    chain 100 | benchmark chain_100 2000
    chain 1000 | benchmark chain_1000 2000
} >chain.mlir

{
    wide 100 'tfrt.new.chain' '!tfrt.chain' | benchmark wide_100 2000
    wide 1000 'tfrt.new.chain' '!tfrt.chain' | benchmark wide_1000 2000
    # A kernel whose side effects the registry does not declare: such kernels run in scheduling order.
    wide 100 '"tfrt_test.get_request_context_data.i32"() : () -> i32' i32 | benchmark scheduled_100 2000
    wide 1000 '"tfrt_test.get_request_context_data.i32"() : () -> i32' i32 | benchmark scheduled_1000 2000
} >wide.mlir

cat >fib.mlir <<'END'
func.func @fib(%n: i32) -> i32 {
  %one = tfrt.constant.i32 1
  %small = "tfrt.lessequal.i32"(%n, %one) : (i32, i32) -> i1
  %r = tfrt.if %small, %n, %one : (i32, i32) -> (i32) {
    tfrt.return %n : i32
  } else {
    %two = tfrt.constant.i32 2
    %n1 = "tfrt.minus.i32"(%n, %one) : (i32, i32) -> i32
    %n2 = "tfrt.minus.i32"(%n, %two) : (i32, i32) -> i32
    %a = tfrt.call @fib(%n1) : (i32) -> i32
    %b = tfrt.call @fib(%n2) : (i32) -> i32
    %s = tfrt.add.i32 %a, %b
    tfrt.return %s : i32
  }
  tfrt.return %r : i32
}
END
benchmark fib_25 3 >>fib.mlir <<'END'
    %n = tfrt.constant.i32 25
    %f = tfrt.call @fib(%n) : (i32) -> i32
    tfrt.return %f : i32
END

loop() {
    cat <<END
    %n = tfrt.constant.i32 $1
    %z = tfrt.repeat.i32 %n, %c : i32 {
      %a = tfrt.add.i32 %c, %c
      %b = tfrt.add.i32 %a, %c
      tfrt.return %b : i32
    }
    tfrt.return %z : i32
END
}
{
    loop 100 | benchmark loop_100 2000
    loop 1100 | benchmark loop_1100 2000
} >loop.mlir

sync() {
    printf 'func.func @sync_%s(%%c: i32) attributes {tfrt.sync} {\n' "$1"
    awk -v n="$1" 'BEGIN { print "%x0 = \"tfrt.add_s.i32\"(%c, %c) : (i32, i32) -> i32"
        for (i = 1; i < n; i++) printf "%%x%d = \"tfrt.add_s.i32\"(%%x%d, %%c) : (i32, i32) -> i32\n", i, i - 1 }'
    printf '  tfrt.return\n}\nfunc.func @bench_sync_%s() attributes {tfrt.sync} {\n' "$1"
    printf '  %%c = "tfrt.constant_s.i32"() {value = 1 : i32} : () -> i32\n'
    printf '  tfrt_test.sync_benchmark @sync_%s(%%c : i32) duration_secs = 5, max_count = 2000, num_warmup_runs = 3\n' "$1"
    printf '  tfrt.return\n}\n'
}
{
    sync 100
    sync 1000
} >sync.mlir

# A kernel that computes for some microseconds: a call of a synchronous function of 5000 kernels.
{
    printf 'func.func @work(%%c: i32) -> i32 attributes {tfrt.sync} {\n%%x0 = "tfrt.add_s.i32"(%%c, %%c) : (i32, i32) -> i32\n'
    awk 'BEGIN { for (i = 1; i < 5000; i++) printf "%%x%d = \"tfrt.add_s.i32\"(%%x%d, %%c) : (i32, i32) -> i32\n", i, i - 1 }'
    printf 'tfrt.return %%x4999 : i32\n}\n'
    awk 'BEGIN { n = 200
        for (i = 0; i < n; i++) {
            printf "%%x%d = tfrt.call @work(%%c) : (i32) -> i32\n", i
            list = list (i ? ", " : "") "%x" i; types = types (i ? ", " : "") "i32"
        }
        printf "%%m = \"tfrt.merge.chains\"(%s) : (%s) -> !tfrt.chain\ntfrt.return %%m : !tfrt.chain\n", list, types }' |
        benchmark work_200 100
} >work.mlir

# Prints the smallest time of a benchmark in nanoseconds. Arguments: program, name, work queue.
least() {
    for _ in $(seq "$runs"); do
        "$pteron" run --limits none "$1.bef" --functions "bench_$2" --work-queue "${3:-s}"
    done | sed -n "s/^BM:.*$2:Time Min(ns): //p" | sort -n | head -n 1
}

for program in chain wide fib loop sync work; do
    "$pteron" translate "$program.mlir" -o "$program.bef"
done
slope() { # what, unit, reference, program, name, small, large
    local a b
    a=$(least "$4" "$5_$6")
    b=$(least "$4" "$5_$7")
    awk -v a="$a" -v b="$b" -v n=$(($7 - $6)) -v r="$3" -v what="$1" -v unit="$2" \
        'BEGIN { v = (b - a) / n; printf "%-40s %8.1f ns/%-10s reference %6.1f  %5.1fx\n", what, v, unit, r, r / v }'
}
slope 'sequential chain (100 to 1000)' kernel 42.6 chain chain 100 1000
slope 'wide graph (100 to 1000)' kernel 218 wide wide 100 1000
slope 'wide graph of unknown effects' kernel 218 wide scheduled 100 1000
slope 'loop of two kernels (100 to 1100)' iteration 229 loop loop 100 1100
slope 'sync interpreter (100 to 1000)' kernel 7.8 sync sync 100 1000
for queue in s mt:1 mt:2; do
    least fib fib_25 "$queue" | awk -v q="$queue" '{ printf "%-40s %8.3f s             reference  0.30-0.67 %5.1fx-%.1fx\n", "fib(25), " q, $1 / 1e9, .296e9 / $1, .673e9 / $1 }'
done
one=$(least work work_200 mt:1)
two=$(least work work_200 mt:2)
awk -v a="$one" -v b="$two" 'BEGIN { printf "%-40s %8.1f us/kernel; two threads: %.2fx\n", "200 kernels that compute, one thread", a / 200e3, a / b }'
