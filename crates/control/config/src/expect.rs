//! The expected value of each key, the same for a wrong type and a wrong value.

pub(crate) const NAME: &str = "a name of 1 to 32 characters out of A-Z a-z 0-9 _ . -";
pub(crate) const POLL: &str = "\"adaptive\" or \"always\"";
pub(crate) const POLL_LIMIT: &str = "an integer from 0 to 1000 or \"auto\"";
pub(crate) const WORKERS: &str = "an integer from 1 to 64 or \"auto\"";
pub(crate) const SWITCH_ON: &str = "true or false";
pub(crate) const PERIOD: &str = "an integer from 1 to 10000";
pub(crate) const KICK_WINDOW: &str = "an integer from 0 to 1000";
pub(crate) const COALESCED_FRAMES: &str = "an integer from 1 to 1024";
pub(crate) const GUEST_STATE: &str = "\"auto\", \"bpf\" or \"off\"";
pub(crate) const CONNECTIONS: &str = "an integer from 1024 to 4194304, or a text like \"100k\"";
pub(crate) const PORT_CONNECTIONS: &str = "an integer from 1 to 4194304, or a text like \"20k\"";
pub(crate) const RECOVERY: &str = "seconds from 0 to 3600, or a text like \"60s\"";
pub(crate) const TIMEOUT: &str = "seconds from 1 to 2147483, or a text like \"24h\"";
pub(crate) const SOCKET_DIRS: &str =
    "an array of at most 64 absolute paths of directories, without \"..\"";
pub(crate) const FORWARD_ADDRESSES: &str = "an array of at most 64 IP addresses";
pub(crate) const LISTEN: &str = "a loopback address with a port like \"127.0.0.1:9464\", or \
                                 \"unix:\" and the path of a socket";
pub(crate) const VLAN: &str = "an integer from 1 to 4094";
pub(crate) const KIND: &str =
    "\"vhost-user\", \"uplink\", \"tap\", \"netmap\", \"memif\" or \"user\"";
pub(crate) const DRIVER: &str = "\"tap\", \"packet\", \"xdp\", \"vhost-net\" or \"auto\"";
pub(crate) const TAP_DRIVER: &str = "\"tap\", \"vhost-net\" or \"auto\" with kind \"tap\"";
pub(crate) const INTERFACE: &str =
    "the name of an interface: 1 to 15 characters without blanks, \"/\", \":\" and \"%\"";
pub(crate) const ADDRESS: &str = "an address with its prefix length like \"10.0.0.1/24\"";
pub(crate) const NETNS: &str = "the name or the path of a network namespace";
pub(crate) const SOCKET: &str = "the path of a socket";
pub(crate) const ROLE: &str = "\"server\" or \"client\"";
pub(crate) const IOMMU: &str = "\"off\", \"offered\" or \"required\"";
pub(crate) const USER: &str = "the name or the number of a user, as a text";
pub(crate) const GROUP: &str = "the name or the number of a group, as a text";
pub(crate) const MODE: &str = "an octal number up to 0777, as a text like \"0660\"";
pub(crate) const RING_PAIRS: &str = "an integer from 1 to 16";
pub(crate) const SLOTS: &str = "a power of two from 64 to 4096";
pub(crate) const SECRET: &str = "a text of 1 to 24 bytes";
pub(crate) const SEGMENT: &str = "the name of a segment";
pub(crate) const TRUNK: &str = "an array of names of segments";
pub(crate) const MAC: &str = "a unicast MAC address like \"52:54:00:00:00:01\"";
pub(crate) const ALLOWED_MACS: &str = "\"any\", \"sticky\", or an array of 1 to 64 unicast \
                                       MAC addresses like \"52:54:00:00:00:01\"";
pub(crate) const ALLOWED_ADDRESSES: &str =
    "\"any\", \"sticky\", or an array of 1 to 64 IP addresses or networks like \"10.0.0.0/24\"";
pub(crate) const ADMIN_STATE: &str = "\"up\" or \"down\"";
pub(crate) const WEIGHT: &str = "an integer from 1 to 1000";
pub(crate) const RATE: &str =
    "a table with packets_per_second, bits_per_second or both, and their bursts";
pub(crate) const FLOOD: &str = "a table with packets_per_second, and packets_burst";
pub(crate) const PACKETS: &str = "an integer from 1 to 1000000000, or a text like \"100k\"";
pub(crate) const PACKETS_BURST: &str = "an integer from 64, which a frame of 64 KiB may \
                                        become, to 1000000000, or a text like \"1k\"";
pub(crate) const BITS: &str = "an integer from 1 to 1000000000000, or a text like \"1G\"";
pub(crate) const BITS_BURST: &str = "an integer from 524424, the bits of a frame of 64 KiB, \
                                     to 1000000000000, or a text like \"10M\"";
pub(crate) const FLOOD_BURST: &str = "an integer from 1 to 1000000000, or a text like \"1k\"";
pub(crate) const PRIORITY: &str = "an integer from 0 to 7";
pub(crate) const PCP: &str = "a priority code point from 0 to 7";
pub(crate) const DSCP: &str = "a DSCP from 0 to 63";
pub(crate) const OVERHEAD: &str = "an integer from 0 to 256";
pub(crate) const ROOM: &str = "an integer from 65553, the bytes of the longest frame, to \
                               1000000000, or a text like \"256k\"";
pub(crate) const FULL: &str = "\"hold\" or \"drop\"";
pub(crate) const CLASS: &str = "the name of a class";
pub(crate) const QOS_GROUP: &str = "the name of a group of [[qos_group]]";
