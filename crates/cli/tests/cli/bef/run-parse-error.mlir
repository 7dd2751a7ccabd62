// FAIL: run %
func.func @main() -> i32 {
  %x = tfrt.constant.i32 1
  tfrt.return %y : i32
}
