// With -v it goes to stderr: of the run that comes before, and of two that are reported.
// RUN: profile % -v --repeat 2 --json -o %tmp/report.json
func.func @main() -> i32 {
  %ch = tfrt.new.chain
  %one = tfrt.constant.i32 1
  %done = tfrt.print.i32 %one, %ch
  tfrt.return %one : i32
}
