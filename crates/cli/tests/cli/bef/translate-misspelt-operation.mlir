// FAIL: translate %
func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  %two = tfrt.ad.i32 %one, %one
  tfrt.return %two : i32
}
