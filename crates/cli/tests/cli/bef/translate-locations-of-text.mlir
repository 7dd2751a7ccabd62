// USAGE: translate % --locations
func.func @main() {
  tfrt.return
}
