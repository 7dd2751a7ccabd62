// FAIL: translate %
func.func @main() {
  "k"() {a, b = {c = 1 : i32}} : () -> ()
  tfrt.return
}
