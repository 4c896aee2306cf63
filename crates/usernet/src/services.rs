//! What the gateway itself answers: ARP, neighbour discovery, router advertisements, DHCP, DNS and
//! echo requests.
