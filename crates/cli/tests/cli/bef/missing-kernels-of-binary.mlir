// FAIL: translate % | run -
func.func @main() {
  %x = "no.such_kernel"() : () -> i32
  %y = "nor.this_one"(%x) : (i32) -> i32
  tfrt.return
}
