func.func @blocks(%c: i1) {
  // expected-error @+1 {{all functions need to have a tfrt.return}}
  "x.branch"()[^bb1] : () -> ()
^bb1:
  tfrt.return
}
// -----
// expected-error @+1 {{multi-block regions cannot be emitted}}
func.func @blocks() {
  tfrt.return
^bb1:
  tfrt.return
}
// -----
func.func @blocks() {
  // expected-error @+1 {{operation with block successors must terminate its parent block}}
  "x.branch"()[^bb1] : () -> ()
  tfrt.return
^bb1:
  tfrt.return
}
// -----
func.func @region() {
  // expected-error @+1 {{multi-block regions cannot be emitted}}
  "x.op"() ({
    tfrt.return
  ^bb1:
    tfrt.return
  }) : () -> ()
  tfrt.return
}
// -----
// expected-error @+1 {{external functions are not allowed}}
func.func private @outside(i32) -> i32
// -----
// expected-error @+1 {{symbol declaration cannot have public visibility}}
func.func @outside(i32) -> i32
// -----
func.func @open() {
  // expected-error @+1 {{all functions need to have a tfrt.return}}
  "x.op"() : () -> ()
}
// -----
func.func @open() {
  // expected-error @+1 {{block with no terminator}}
  %a = tfrt.constant.i32 1
}
// -----
func.func @early() {
  // expected-error @+1 {{'tfrt.return' op must be the last operation in the parent block}}
  tfrt.return
  tfrt.return
}
// -----
func.func @region() {
  "x.op"() ({
    // expected-error @+1 {{all regions need to have a tfrt.return}}
    "x.inner"() : () -> ()
  }) : () -> ()
  tfrt.return
}
// -----
func.func @leak(%x: i32) {
  "x.op"() ({
    // expected-error @+1 {{only supports references to kernels within the current region}}
    "x.use"(%x) : (i32) -> ()
    tfrt.return
  }) : () -> ()
  tfrt.return
}
// -----
func.func @leak(%x: i32) -> i32 {
  %n = tfrt.constant.i32 3
  %r = tfrt.repeat.i32 %n, %x : i32 {
    // expected-error @+1 {{use of undeclared SSA value name}}
    tfrt.return %n : i32
  }
  tfrt.return %r : i32
}
// -----
func.func @sync(%x: i32) -> i32 attributes {tfrt.sync} {
  // expected-error @+1 {{return value 0 is an argument in a sync function}}
  tfrt.return %x : i32
}
// -----
func.func @sync() -> (i32, i32) attributes {tfrt.sync} {
  %a = "tfrt.constant_s.i32"() {value = 1 : i32} : () -> i32
  // expected-error @+1 {{return value 1 is duplicated in a sync function}}
  tfrt.return %a, %a : i32, i32
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'a' attribute}}
  "x.op"() {a = unit} : () -> ()
  tfrt.return
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'a' attribute}}
  "x.op"() {a = tensor<2xf32>} : () -> ()
  tfrt.return
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'b' attribute}}
  "x.op"() {a = 1 : i32, b = 3 : index, c = "x"} : () -> ()
  tfrt.return
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'a' attribute}}
  "x.op"() {a = dense<"word"> : tensor<1x!corert.string>} : () -> ()
  tfrt.return
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'a' attribute}}
  "x.op"() {a = [1 : i32, {}]} : () -> ()
  tfrt.return
}
// -----
func.func @attributes() {
  // expected-error @+1 {{BEF files cannot encode the 'a' attribute}}
  "x.op"() {a = #other.thing<1>} : () -> ()
  tfrt.return
}
// -----
func.func @missing() {
  // expected-error @+1 {{function @ghost not defined}}
  "x.op"() {a = [@missing, @ghost]} : () -> ()
  tfrt.return
}
// -----
func.func @missing(%x: i32) {
  // expected-error @+1 {{'tfrt.call' op 'ghost' does not reference a valid function}}
  tfrt.call @ghost(%x) : (i32) -> ()
  tfrt.return
}
// -----
func.func @missing(%x: i32) {
  // expected-error @+1 {{'tfrt.case' op 'ghost' does not reference a valid function}}
  tfrt.case %x [@missing, @ghost] (%x) : (i32) -> ()
  tfrt.return
}
// -----
func.func @wrong(%x: i32) {
  // expected-error @+1 {{'tfrt.call' op operand type mismatch}}
  tfrt.call @takes_float(%x) : (i32) -> ()
  tfrt.return
}
func.func @takes_float(%x: f32) {
  tfrt.return
}
// -----
func.func @wrong(%x: i32) -> f32 {
  // expected-error @+1 {{type of return operand 0 ('i32') doesn't match function result type ('f32')}}
  tfrt.return %x : i32
}
// -----
func.func @wrong(%x: i32) -> (i32, i32) {
  // expected-error @+1 {{'tfrt.return' op has 1 operands, but enclosing function returns 2}}
  tfrt.return %x : i32
}
// -----
func.func @wrong(%x: i64) {
  // expected-error @+1 {{'tfrt.print.i32' op operand #0 must be 32-bit signless integer, but got 'i64'}}
  %0 = "tfrt.print.i32"(%x, %x) : (i64, i64) -> !tfrt.chain
  tfrt.return
}
// -----
func.func @wrong() {
  // expected-error @+1 {{'tfrt.constant.i32' op requires attribute 'value'}}
  %0 = "tfrt.constant.i32"() : () -> i32
  tfrt.return
}
// -----
func.func @twice() {
  tfrt.return
}
// expected-error @+1 {{redefinition of symbol named 'twice'}}
func.func @twice() {
  tfrt.return
}
// -----
func.func @twice() {
  %a = tfrt.new.chain
  // expected-error @+1 {{redefinition of SSA value '%a'}}
  %a = tfrt.new.chain
  tfrt.return
}
// -----
func.func @late() -> i32 {
  // expected-error @+1 {{operand #0 does not dominate this use}}
  %a = "x.op"(%b) : (i32) -> i32
  %b = "x.op"(%a) : (i32) -> i32
  tfrt.return %b : i32
}
// -----
func.func @sideways() {
  "x.two"() ({
    // expected-error @+1 {{operand #0 does not dominate this use}}
    tfrt.return %a : i32
  }, {
    %a = "x.op"() : () -> i32
    tfrt.return %a : i32
  }) : () -> ()
  tfrt.return
}
// -----
func.func @outside(%x: i32) -> i32 {
  %n = tfrt.constant.i32 3
  %r = "tfrt.repeat.i32"(%n, %x) ({
  ^bb0(%y: i32):
    // expected-error @+1 {{'tfrt.return' op using value defined outside the region}}
    "tfrt.return"(%n) : (i32) -> ()
  }) : (i32, i32) -> i32
  tfrt.return %r : i32
}
// -----
module @unit attributes {tfrt.compiled} {
}
func.func @launch() {
  // expected-error @+1 {{@unit is a compiled module, not a function in one}}
  "x.launch"() {entry = @unit} : () -> ()
  tfrt.return
}
// -----
func.func @launch() {
  // expected-error @+1 {{function @unit::@go not defined}}
  "x.launch"() {entry = @unit::@go} : () -> ()
  tfrt.return
}
// -----
module {
  // expected-error @+1 {{a nested module must be compiled}}
  module {
  }
}
// -----
// expected-error @+1 {{Dialect `nobody' not found for custom op 'nobody.op'}}
nobody.op
// -----
func.func @nameless() {
  // expected-error @+1 {{expected the name of a dialect}}
  %0 = "x.op"() : () -> !.type
  tfrt.return
}
