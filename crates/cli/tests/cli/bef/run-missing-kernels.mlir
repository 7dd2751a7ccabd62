// Every missing kernel is named before anything runs.
// FAIL: run %
func.func @main() {
  %x = "no.such_kernel"() : () -> i32
  %c = tfrt.new.chain
  %y = "nor.this_one"(%x) : (i32) -> i32
  tfrt.return
}
