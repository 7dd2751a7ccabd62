// An unexpected error is printed once, because the function is not run again; the exit status is 1.
// FAIL: profile % -o %tmp/report.txt
func.func @fails() -> (i32, i32) {
  %a = tfrt.constant.i32 1
  %zero = tfrt.constant.i32 0
  %q, %r = tfrt.div.i32 %a, %zero
  tfrt.return %q, %r : i32, i32
}
