// The output of the program does not mix with the report.
// RUN: profile % -o %tmp/report.txt --trace %tmp/trace.json
func.func @main() -> i32 {
  %ch = tfrt.new.chain
  %one = tfrt.constant.i32 1
  %done = tfrt.print.i32 %one, %ch
  tfrt.return %one : i32
}
