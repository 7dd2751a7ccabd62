// RUN: run %
func.func @fails() -> (i32, i32) {
  %a = tfrt.constant.i32 1
  %zero = tfrt.constant.i32 0
  // expected-error @+1 {{Divide by zero}}
  %q, %r = tfrt.div.i32 %a, %zero
  tfrt.return %q, %r : i32, i32
}
