//! Linerate: a TCP/IP stack in user space for very fast flows.
#![forbid(unsafe_code)]

mod driver;
mod error;
pub mod stack;
pub mod tcp;
mod wait;

pub mod nic {
    //! The software NIC.
    pub use linerate_netdev::{FaultPlan, Features, Qstats, RxQueue, TxQueue};
    pub use linerate_softnic::*;
}
pub mod manual {
    //! x
    pub mod wait_modes {
        //! x
    }
}
pub mod inline {
    //! x
    pub use linerate_stack::*;
}

pub use error::Error;
pub use linerate_base::Errno;
pub use linerate_host::Wait;
pub use linerate_skb::{Frag, PoolConfig};
pub use linerate_stack::{BindOpts, SockOpts, StackConfig, TcpInfo};
pub use stack::{Builder, Interface, InterfaceStats, Stack, StackHandle, StackWaker, Stats};
pub use tcp::{ConnectOptions, ListenOptions, ReadHalf, TcpListener, TcpStream, WriteHalf};
