//! Prints the C header of the contract.
fn main() {
    print!("{}", vrdma_abi::header::c_header());
}
