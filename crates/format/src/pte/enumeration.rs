/// Defines an enum of the schema: its members, their numbers, and their names.
macro_rules! schema_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:literal $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        #[repr(i8)]
        pub enum $name { #[default] $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// The member with this number; `None` if it is unknown.
            pub const fn from_i8(value: i8) -> Option<Self> {
                match value { $($value => Some(Self::$variant),)* _ => None }
            }

            /// The name of this member in the schema.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}
pub(crate) use schema_enum;
