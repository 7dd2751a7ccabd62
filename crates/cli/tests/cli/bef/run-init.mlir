// The function named by --init runs first, and not again.
// RUN: bef run % --init second
func.func @first() -> i32 {
  %x = tfrt.constant.i32 1
  tfrt.return %x : i32
}
func.func @second() -> i32 {
  %x = tfrt.constant.i32 2
  tfrt.return %x : i32
}
