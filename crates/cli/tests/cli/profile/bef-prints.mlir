// With -v the output of the program goes to stderr: that of the warm-up run, and of the two reported runs.
// RUN: profile % -v --repeat 2 --json -o %tmp/report.json
func.func @main() -> i32 {
  %ch = tfrt.new.chain
  %one = tfrt.constant.i32 1
  %done = tfrt.print.i32 %one, %ch
  tfrt.return %one : i32
}
