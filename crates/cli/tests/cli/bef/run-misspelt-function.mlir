// FAIL: bef run % --functions mian
func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  tfrt.return %one : i32
}
