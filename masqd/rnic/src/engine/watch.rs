//! Which guests' doorbells a turn looks at.
//!
//! Doorbells lie in the memory of each guest: to look at an idle one costs an engine a few cache misses, and most guests of a host are idle. So those whose
//! doorbells were marked a short while ago are looked at in every turn, of the others a part, in turns; and all of them when the engine has
//! nothing else to do, has just slept, or is about to sleep.

/// How much of the doorbells to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There may be other things to do: some of the idle guests.
    Glance,
    /// All guests.
    Whole,
}

/// The guests of an engine, by how long nothing was seen of them.
#[derive(Debug, Default)]
pub struct Watch {
    /// Those looked at each time, and how often nothing was seen since.
    active: Vec<(usize, u8)>,
    /// The others.
    idle: Vec<usize>,
    /// Whose turn it is among them.
    next: usize,
}

impl Watch {
    /// Looks without result after which a guest counts as idle: some milliseconds of a busy engine.
    const PATIENCE: u8 = 100;
    /// All idle guests have been looked at after as many glances.
    const GLANCES: usize = 8;
    /// So many of them are looked at in any case.
    const AT_LEAST: usize = 32;

    /// A guest has come, whose doorbells may be marked.
    pub fn add(&mut self, vnic: usize) {
        self.active.push((vnic, 0));
    }

    /// A guest goes. O(n).
    pub fn remove(&mut self, vnic: usize) {
        self.active.retain(|(v, _)| *v != vnic);
        self.idle.retain(|v| *v != vnic);
    }

    /// Calls `is_marked` for each guest that is to be looked at.
    pub fn look(&mut self, look: Look, mut is_marked: impl FnMut(usize) -> bool) {
        let Self { active, idle, next } = self;
        let turns = match look {
            Look::Whole => {
                *next = 0;
                idle.len()
            }
            Look::Glance => idle.len().div_ceil(Self::GLANCES).max(Self::AT_LEAST).min(idle.len()),
        };
        active.retain_mut(|(vnic, quiet)| {
            *quiet = if is_marked(*vnic) { 0 } else { *quiet + 1 };
            let stays = *quiet < Self::PATIENCE;
            if !stays {
                idle.push(*vnic);
            }
            stays
        });
        for _ in 0..turns {
            if *next >= idle.len() {
                *next = 0;
            }
            let Some(vnic) = idle.get(*next).copied() else { break };
            if is_marked(vnic) {
                // The last one takes its place, and has its turn next.
                idle.swap_remove(*next);
                active.push((vnic, 0));
            } else {
                *next += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guests that are looked at, of which `marked` is.
    fn seen(watch: &mut Watch, look: Look, marked: usize) -> Vec<usize> {
        let mut seen = Vec::new();
        watch.look(look, |vnic| {
            seen.push(vnic);
            vnic == marked
        });
        seen
    }

    fn watch(guests: usize) -> Watch {
        let mut watch = Watch::default();
        (0..guests).for_each(|vnic| watch.add(vnic));
        watch
    }

    #[test]
    fn new_guests_are_looked_at_until_they_turn_out_to_be_idle() {
        let mut watch = watch(100);
        for _ in 0..Watch::PATIENCE {
            assert_eq!(seen(&mut watch, Look::Glance, 7).len(), 100);
        }
        let glance = seen(&mut watch, Look::Glance, 7);
        assert_eq!(glance.len(), 1 + Watch::AT_LEAST);
        assert_eq!(glance[0], 7, "it is active");
    }

    #[test]
    fn a_few_glances_see_all_and_one_whole_look_does() {
        let mut watch = watch(1024);
        (0..Watch::PATIENCE).for_each(|_| drop(seen(&mut watch, Look::Whole, 0)));
        let all: Vec<usize> = (0..1024).collect();
        let mut glances: Vec<usize> =
            (0..Watch::GLANCES).flat_map(|_| seen(&mut watch, Look::Glance, 0)).collect();
        assert!(glances.len() <= 1024 + Watch::GLANCES);
        glances.sort_unstable();
        glances.dedup();
        assert_eq!(glances, all);
        let mut whole = seen(&mut watch, Look::Whole, 0);
        whole.sort_unstable();
        assert_eq!(whole, all);
    }

    #[test]
    fn who_is_marked_becomes_active_and_who_goes_is_gone() {
        let mut watch = watch(100);
        (0..Watch::PATIENCE).for_each(|_| drop(seen(&mut watch, Look::Whole, usize::MAX)));
        assert!(watch.active.is_empty());
        seen(&mut watch, Look::Whole, 60);
        assert_eq!(seen(&mut watch, Look::Glance, 60)[0], 60);
        watch.remove(60);
        watch.remove(61);
        let mut whole = seen(&mut watch, Look::Whole, usize::MAX);
        whole.sort_unstable();
        assert_eq!(whole, (0..100).filter(|v| ![60, 61].contains(v)).collect::<Vec<_>>());
    }
}
