// RUN: translate --no-optional-sections % | translate -
func.func @main() -> i32 {
  %x = tfrt.constant.i32 40
  tfrt.return %x : i32
}
