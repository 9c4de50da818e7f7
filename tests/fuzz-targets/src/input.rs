//! How the targets read their bytes. The format is this crate's own, so that a described regression stays what it
//! was: little-endian numbers, one behind another, zero where the bytes have ended.

/// What is left of the input.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Input(data)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, or as many as there are.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.bytes(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One byte, as a number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        usize::from(self.u8()) % bound
    }

    /// Bytes of exactly this length, the last of them zero where the input has ended.
    pub fn exactly(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.bytes(len).to_vec();
        bytes.resize(len, 0);
        bytes
    }

    /// An address in or around `len` bytes at `base`, or any.
    pub fn address(&mut self, base: u64, len: u64) -> u64 {
        match self.below(4) {
            0 => base + u64::from(self.u32()) % len,
            1 => base.wrapping_add_signed(i64::from(self.u8()) - 128),
            2 => (base + len).wrapping_add_signed(i64::from(self.u8()) - 200),
            _ => self.u64(),
        }
    }

    /// A length that is small, about `len`, or any.
    pub fn length(&mut self, len: u32) -> u32 {
        match self.below(4) {
            0 | 1 => u32::from(self.u16()) % 2048,
            2 => len.wrapping_add_signed(i32::from(self.u8()) - 128),
            _ => self.u32(),
        }
    }

    /// One of these keys, or one that is close to none of them.
    pub fn key(&mut self, keys: &[u32]) -> u32 {
        match keys.get(self.below(keys.len() + 2)) {
            Some(key) => *key,
            None => self.u32(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Input;

    #[test]
    fn numbers_end_in_zeroes() {
        let mut input = Input::new(&[1, 2, 3]);
        assert_eq!((input.u16(), input.u32(), input.u8()), (0x201, 3, 0));
        assert!(input.is_empty());
        assert_eq!(Input::new(&[9]).exactly(3), [9, 0, 0]);
        assert_eq!(Input::new(&[1, 2, 3]).bytes(2), [1, 2]);
    }

    #[test]
    fn addresses_lie_where_they_say() {
        assert_eq!(Input::new(&[0, 5, 0, 0, 0]).address(100, 10), 105);
        assert_eq!(Input::new(&[1, 127]).address(100, 10), 99);
        assert_eq!(Input::new(&[2, 201]).address(100, 10), 111);
        assert_eq!(Input::new(&[3, 7]).address(100, 10), 7);
        assert_eq!((Input::new(&[1]).key(&[8, 9]), Input::new(&[2, 4]).key(&[8, 9])), (9, 4));
    }
}
