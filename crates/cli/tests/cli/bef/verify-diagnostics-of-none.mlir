// A text without errors that announces none.
// RUN: translate % --verify-diagnostics
func.func @main() {
  tfrt.return
}
