// An expected error occurs in every run.
// TIMES:
// RUN: profile % --functions none,fails --repeat 2 -o %tmp/report.txt
func.func @none() {
  tfrt.return
}

func.func @fails() -> (i32, i32) {
  %a = tfrt.constant.i32 1
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{runtime error: Divide by zero}}
  %q, %r = tfrt.div.i32 %a, %zero
  tfrt.return %q, %r : i32, i32
}
