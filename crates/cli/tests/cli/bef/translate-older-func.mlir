// FAIL: translate %
func @main() {
  tfrt.return
}
