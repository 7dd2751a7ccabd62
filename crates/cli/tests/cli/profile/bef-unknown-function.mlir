// FAIL: profile % --functions other
func.func @main() {
  tfrt.return
}
