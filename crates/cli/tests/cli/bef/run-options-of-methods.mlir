// Options that only programs of methods have are not dropped silently.
// USAGE: run % --json --top 3 --repeat 5
func.func @main() {
  tfrt.return
}
