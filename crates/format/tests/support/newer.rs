//! Makes files of a newer schema out of those of today: tables get fields that no reader knows. Crates that depend on this
//! one include this module by its path.

use super::random::Random;
use std::collections::HashMap;

/// The fields of each table: the bytes of a scalar, `s` a string, `vN` a vector of scalars of N bytes, `T` a table, `[T]` a
/// vector of tables, `A|B` a union, which takes two fields.
const SCHEMA: &str = "
    Program 4 [Plan] [Inline] [Inline] [Segment] Parts [Parts] [Named]
    Inline v1
    Segment 8 8
    Parts 4 v8
    Named s 4
    Plan s Containers [Value] v4 v4 [Chain] [Operator] [Delegate] v8 [Device]
    Containers s s
    Operator s s
    Device 4 1 1
    Delegate s Processed [Spec]
    Processed 1 4
    Spec s v1
    Chain v4 v4 [Instruction] [Frames]
    Frames [Frame]
    Frame s 4 s s
    Instruction Call|Call|Pair|Pair|Free
    Call 4 v4
    Pair 4 4
    Free 4
    Value Null|Long|Bool|Long|Tensor|Text|Longs|Longs|Bools|Ints|Ints
    Null
    Long 8
    Bool 1
    Text s
    Longs v8
    Ints v4
    Bools v1
    Tensor 1 4 v4 v1 1 4 Place 1 1 Extra
    Place 4 4 4
    Extra 8 s 1 1 1
    FlatTensor 4 [Segment] [Entry]
    Entry s 4 Layout
    Layout 1 v4 v1
";

/// A file with undeclared fields.
pub struct Newer {
    pub file: Vec<u8>,
    /// Bytes that the undeclared fields consist of.
    pub marks: Vec<Vec<u8>>,
}

struct Maker<'a> {
    old: &'a [u8],
    out: Vec<u8>,
    schema: HashMap<&'static str, Vec<&'static str>>,
    random: &'a mut Random,
    /// One table in so many gets fields.
    rarity: usize,
    marks: Vec<Vec<u8>>,
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

fn follow(bytes: &[u8], at: usize) -> usize {
    at + u32_at(bytes, at)
}

impl Maker<'_> {
    /// Appends bytes at a position that equals `like` modulo 16.
    fn append(&mut self, bytes: &[u8], like: usize) -> usize {
        while self.out.len() % 16 != like % 16 {
            self.out.push(0);
        }
        self.out.extend(bytes);
        self.out.len() - bytes.len()
    }

    fn refer(&mut self, slot: usize, target: usize) {
        self.out[slot..slot + 4].copy_from_slice(&((target - slot) as u32).to_le_bytes());
    }

    fn mark(&mut self, len: usize) -> Vec<u8> {
        let mut mark = self.random.draw().to_le_bytes()[..len].to_vec();
        // No zero: a field of zeros could be left out.
        mark.iter_mut().for_each(|byte| *byte |= 0x40);
        self.marks.push(mark.clone());
        mark
    }

    fn table(&mut self, at: usize, name: &str) -> usize {
        let old = self.old;
        let vtable = (at as i64 - i64::from(u32_at(old, at) as u32 as i32)) as usize;
        let (vtable_len, len) = (u16_at(old, vtable), u16_at(old, vtable + 2));
        let fields: Vec<&str> = self.schema[name]
            .iter()
            .flat_map(|f| if f.contains('|') { vec![*f, "member"] } else { vec![*f] })
            .collect();
        let mut slots: Vec<u16> =
            (0..vtable_len / 2 - 2).map(|id| u16_at(old, vtable + 4 + 2 * id) as u16).collect();
        let mut body = old[at..at + len].to_vec();
        let mut text = None;
        if self.random.below(self.rarity) == 0 {
            slots.resize(fields.len(), 0);
            body.resize(body.len().next_multiple_of(8), 0);
            // The table starts at a multiple of 4 that is kept modulo 8.
            body.resize(body.len() + (8 - at % 8) % 8, 0);
            slots.push(body.len() as u16);
            let mark = self.mark(8);
            body.extend(mark);
            slots.push(0);
            slots.push(body.len() as u16);
            text = Some(body.len());
            body.extend([0; 4]);
        }
        let mut table = ((4 + 2 * slots.len()) as u16).to_le_bytes().to_vec();
        table.extend((body.len() as u16).to_le_bytes());
        slots.iter().for_each(|slot| table.extend(slot.to_le_bytes()));
        let vtable = self.append(&table, 0);
        let to = self.append(&body, at);
        self.out[to..to + 4].copy_from_slice(&((to as i64 - vtable as i64) as i32).to_le_bytes());
        if let Some(slot) = text {
            let mut string = self.mark(7);
            string.push(0);
            let mut bytes = 7u32.to_le_bytes().to_vec();
            bytes.extend(string);
            let target = self.append(&bytes, 0);
            self.refer(to + slot, target);
        }
        for (id, field) in fields.iter().enumerate() {
            let Some(&slot) = slots.get(id).filter(|&&slot| slot > 0) else { continue };
            let slot = usize::from(slot);
            if let Some((_, kind)) =
                id.checked_sub(1).map(|before| (before, fields[before])).filter(|(_, f)| f.contains('|'))
            {
                let member = usize::from(old[at + usize::from(slots[id - 1])]);
                let name = kind.split('|').nth(member - 1).unwrap();
                let target = self.table(follow(old, at + slot), name);
                self.refer(to + slot, target);
                continue;
            }
            let target = match *field {
                field if field.contains('|') || field.parse::<usize>().is_ok() => continue,
                "s" => {
                    let from = follow(old, at + slot);
                    self.append(&old[from..from + 5 + u32_at(old, from)], from)
                }
                field if field.starts_with('v') => {
                    let from = follow(old, at + slot);
                    let size: usize = field[1..].parse().unwrap();
                    self.append(&old[from..from + 4 + size * u32_at(old, from)], from)
                }
                field if field.starts_with('[') => {
                    let from = follow(old, at + slot);
                    let count = u32_at(old, from);
                    let vector = self.append(&old[from..from + 4 + 4 * count], 0);
                    for entry in 0..count {
                        let target =
                            self.table(follow(old, from + 4 + 4 * entry), &field[1..field.len() - 1]);
                        self.refer(vector + 4 + 4 * entry, target);
                    }
                    vector
                }
                name => self.table(follow(old, at + slot), name),
            };
            self.refer(to + slot, target);
        }
        to
    }
}

/// The tables with `header` inserted after the first eight bytes, and with undeclared fields in about one of `rarity` tables; also returns
/// these fields' bytes.
fn newer_tables(
    tables: &[u8],
    root: &str,
    header: &[u8],
    random: &mut Random,
    rarity: usize,
) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut out = tables[..8].to_vec();
    out.extend(header);
    let lines = SCHEMA.lines().map(str::split_whitespace);
    let schema = lines.filter_map(|mut words| Some((words.next()?, words.collect()))).collect();
    let mut maker = Maker { old: tables, out, schema, random, rarity, marks: Vec::new() };
    let target = maker.table(follow(tables, 0), root);
    maker.refer(0, target);
    let Maker { mut out, marks, .. } = maker;
    out.resize(out.len().next_multiple_of(16), 0);
    (out, marks)
}

fn put(file: &mut [u8], at: usize, number: u64) {
    file[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

fn u64_at(file: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(file[at..at + 8].try_into().unwrap())
}

/// A program of a newer schema: with undeclared fields, a longer header if it has one, and bytes behind the end.
pub fn program(file: &[u8], random: &mut Random, rarity: usize) -> Newer {
    let has_header = &file[8..12] == b"eh00";
    let size = if has_header { u64_at(file, 16) as usize } else { file.len() };
    let mut header = Vec::new();
    let mut own = Vec::new();
    if has_header {
        header = file[8..40].to_vec();
        header[4..8].copy_from_slice(&48u32.to_le_bytes());
        own = (0..16).map(|_| random.draw() as u8 | 1).collect();
        header.extend(&own);
    }
    let (mut out, mut marks) = newer_tables(&file[..size], "Program", &header, random, rarity);
    if has_header {
        let (base, new) = (u64_at(file, 24) as usize, out.len());
        put(&mut out, 16, new as u64);
        if base > 0 {
            out.resize(new.next_multiple_of(if base % 4096 == 0 { 4096 } else { 128 }), 0);
            let base_of_new = out.len() as u64;
            put(&mut out, 24, base_of_new);
            out.extend(&file[base..]);
        }
        marks.push(own);
        out.extend(b"SIGNATURE");
        marks.push(b"SIGNATURE".to_vec());
    }
    Newer { file: out, marks }
}

/// Named data of a newer schema, likewise.
pub fn flat_tensor(file: &[u8], random: &mut Random, rarity: usize) -> Newer {
    let tables = (u64_at(file, 16) + u64_at(file, 24)) as usize;
    let base = u64_at(file, 32) as usize;
    let mut header = file[8..48].to_vec();
    header[4..8].copy_from_slice(&56u32.to_le_bytes());
    let own: Vec<u8> = (0..16).map(|_| random.draw() as u8 | 1).collect();
    header.extend(&own);
    header.extend([0; 8]);
    put(&mut header, 8, 64);
    let (mut out, mut marks) = newer_tables(&file[..tables], "FlatTensor", &header, random, rarity);
    let new = out.len() as u64;
    put(&mut out, 24, new - 64);
    out.resize(out.len().next_multiple_of(if base.is_multiple_of(4096) { 4096 } else { 128 }), 0);
    let base_of_new = out.len() as u64;
    put(&mut out, 32, base_of_new);
    out.extend(&file[base.min(file.len())..]);
    marks.push(own);
    out.extend(b"SIGNATURE");
    marks.push(b"SIGNATURE".to_vec());
    Newer { file: out, marks }
}

/// How many of the marks a file lacks.
pub fn missing(marks: &[Vec<u8>], file: &[u8]) -> usize {
    let has = |mark: &Vec<u8>| mark.is_empty() || file.windows(mark.len()).any(|window| window == mark);
    marks.iter().filter(|mark| !has(mark)).count()
}
