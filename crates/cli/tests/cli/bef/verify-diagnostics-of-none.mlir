// A text without errors that expects none.
// RUN: translate % --verify-diagnostics
func.func @main() {
  tfrt.return
}
