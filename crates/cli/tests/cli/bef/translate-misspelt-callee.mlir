// FAIL: translate %
func.func @main() -> i32 {
  %one = tfrt.constant.i32 1
  %two = tfrt.call @duoble(%one) : (i32) -> i32
  tfrt.return %two : i32
}
func.func @double(%x: i32) -> i32 {
  %y = tfrt.add.i32 %x, %x
  tfrt.return %y : i32
}
