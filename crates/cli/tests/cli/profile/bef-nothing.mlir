// TIMES:
// RUN: profile %
func.func @takes(%a: i32) -> i32 {
  tfrt.return %a : i32
}
