// Options that do not apply to BEF programs are an error.
// USAGE: run % --json --top 3 --repeat 5
func.func @main() {
  tfrt.return
}
