// FAIL: bef run %
func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  %two = "tfrt.ad.i32"(%one, %one) : (i32, i32) -> i32
  tfrt.return %two : i32
}
