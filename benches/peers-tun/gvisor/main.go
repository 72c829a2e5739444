// gVisor's netstack at the far end of a TUN that `linerate-peers-tun --stack gvisor` opened and handed down.
//
// The link endpoint is our own glue, since netstack's endpoints know virtio headers only on sockets: one readv and one
// writev a packet, super-packets up to 64 KiB and unfinished checksums both ways when the device has the header. It
// listens, says "ready" on its standard output, and serves one connection: it writes the pattern, or reads and compares
// the last byte of each read.
package main

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/rawfile"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/stopfd"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const (
	blockBytes = 128 << 10
	vnetBytes  = 10
	needsCsum  = 1
	gsoTCPv4   = 1
	// Collections are rarer than by default; netstack recycles its buffers itself.
	gcPercent = 400
)

// Room for one packet of 64 KiB; what a packet did not reach is kept for the next.
var viewBytes = []int{2048, 4096, 8192, 16384, 32768, 4096}

type endpoint struct {
	fd         int
	mtu        uint32
	vnet       bool
	dispatcher stack.NetworkDispatcher
}

func (e *endpoint) MTU() uint32                             { return e.mtu }
func (e *endpoint) SetMTU(mtu uint32)                       { e.mtu = mtu }
func (e *endpoint) MaxHeaderLength() uint16                 { return 0 }
func (e *endpoint) LinkAddress() tcpip.LinkAddress          { return "" }
func (e *endpoint) SetLinkAddress(tcpip.LinkAddress)        {}
func (e *endpoint) IsAttached() bool                        { return e.dispatcher != nil }
func (e *endpoint) Wait()                                   {}
func (e *endpoint) ARPHardwareType() header.ARPHardwareType { return header.ARPHardwareNone }
func (e *endpoint) AddHeader(*stack.PacketBuffer)           {}
func (e *endpoint) ParseHeader(*stack.PacketBuffer) bool    { return true }
func (e *endpoint) Close()                                  {}
func (e *endpoint) SetOnCloseAction(func())                 {}
func (e *endpoint) GSOMaxSize() uint32                      { return 65535 }

func (e *endpoint) Capabilities() stack.LinkEndpointCapabilities {
	if e.vnet {
		// Sums of segments with GSO options, which is all data, are left to the kernel without TXChecksumOffload; with it
		// those of other segments would be missing.
		return stack.CapabilityRXChecksumOffload
	}
	return 0
}

func (e *endpoint) SupportedGSO() stack.SupportedGSO {
	if e.vnet {
		return stack.HostGSOSupported
	}
	return stack.GSONotSupported
}

func (e *endpoint) Attach(d stack.NetworkDispatcher) {
	e.dispatcher = d
	if d != nil {
		go e.read()
	}
}

func (e *endpoint) read() {
	stop, err := stopfd.New()
	if err != nil {
		fail("stopfd", err)
	}
	head := make([]byte, vnetBytes)
	views := make([]*buffer.View, len(viewBytes))
	var iovecs []unix.Iovec
	for {
		iovecs = iovecs[:0]
		if e.vnet {
			iovecs = rawfile.AppendIovecFromBytes(iovecs, head, len(views)+1)
		}
		for i, n := range viewBytes {
			if views[i] == nil {
				views[i] = buffer.NewViewSize(n)
			}
			iovecs = rawfile.AppendIovecFromBytes(iovecs, views[i].AsSlice(), len(views)+1)
		}
		n, errno := rawfile.BlockingReadvUntilStopped(stop.EFD, e.fd, iovecs)
		if errno != 0 || n <= 0 {
			return
		}
		if e.vnet {
			n -= vnetBytes
		}
		var payload buffer.Buffer
		for i := range views {
			if n <= 0 {
				break
			}
			v := views[i]
			views[i] = nil
			if n < v.Size() {
				v.CapLength(n)
			}
			n -= v.Size()
			payload.Append(v)
		}
		pkt := stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: payload})
		pkt.RXChecksumValidated = e.vnet
		version, ok := pkt.Data().PullUp(1)
		if ok && header.IPVersion(version) == header.IPv4Version {
			e.dispatcher.DeliverNetworkPacket(header.IPv4ProtocolNumber, pkt)
		}
		pkt.DecRef()
	}
}

func (e *endpoint) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	written := 0
	for _, pkt := range pkts.AsSlice() {
		var head [vnetBytes]byte
		var array [20]unix.Iovec
		views := pkt.AsSlices()
		iovecs := array[:0]
		if e.vnet {
			gso := &pkt.GSOOptions
			if gso.Type != stack.GSONone {
				binary.LittleEndian.PutUint16(head[2:], uint16(pkt.HeaderSize()))
				if gso.NeedsCsum {
					head[0] = needsCsum
					binary.LittleEndian.PutUint16(head[6:], gso.L3HdrLen)
					binary.LittleEndian.PutUint16(head[8:], gso.CsumOffset)
				}
				if pkt.Data().Size() > int(gso.MSS) {
					head[1] = gsoTCPv4
					binary.LittleEndian.PutUint16(head[4:], gso.MSS)
				}
			}
			iovecs = rawfile.AppendIovecFromBytes(iovecs, head[:], len(views)+1)
		}
		for _, v := range views {
			iovecs = rawfile.AppendIovecFromBytes(iovecs, v, len(views)+1)
		}
		if errno := rawfile.NonBlockingWriteIovec(e.fd, iovecs); errno != 0 {
			return written, tcpip.TranslateErrno(errno)
		}
		written++
	}
	return written, nil
}

func fail(what string, why any) {
	fmt.Fprintf(os.Stderr, "gvisor: %s: %v\n", what, why)
	os.Exit(1)
}

func check(what string, err tcpip.Error) {
	if err != nil {
		fail(what, err)
	}
}

func newStack(link stack.LinkEndpoint, addr tcpip.Address) *stack.Stack {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack, moderate := tcpip.TCPSACKEnabled(true), tcpip.TCPModerateReceiveBufferOption(true)
	rcv := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 8 << 20}
	snd := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 8 << 20}
	for _, option := range []tcpip.SettableTransportProtocolOption{&sack, &moderate, &rcv, &snd} {
		check("option", s.SetTransportProtocolOption(tcp.ProtocolNumber, option))
	}
	check("device", s.CreateNIC(1, link))
	check("address", s.AddProtocolAddress(1, tcpip.ProtocolAddress{
		Protocol:          ipv4.ProtocolNumber,
		AddressWithPrefix: tcpip.AddressWithPrefix{Address: addr, PrefixLen: 24},
	}, stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s
}

func main() {
	fd := flag.Int("fd", -1, "descriptor of the TUN")
	mtu := flag.Uint("mtu", 1500, "its MTU, bytes")
	vnet := flag.Bool("vnet", true, "packets have a virtio header of 10 bytes")
	write := flag.Bool("write", true, "write the stream, instead of reading it")
	addr := flag.String("addr", "10.77.0.2", "this end's IPv4 address")
	port := flag.Uint("port", 5201, "where to listen")
	flag.Parse()
	debug.SetGCPercent(gcPercent)

	ip := tcpip.AddrFromSlice(net.ParseIP(*addr).To4())
	s := newStack(&endpoint{fd: *fd, mtu: uint32(*mtu), vnet: *vnet}, ip)
	at := tcpip.FullAddress{NIC: 1, Addr: ip, Port: uint16(*port)}
	listener, err := gonet.ListenTCP(s, at, ipv4.ProtocolNumber)
	if err != nil {
		fail("listen", err)
	}
	fmt.Println("ready")
	conn, err := listener.Accept()
	if err != nil {
		fail("accept", err)
	}
	pattern := make([]byte, blockBytes)
	for i := range pattern {
		pattern[i] = byte(uint32(i) * 0x9e3779b1 >> 24)
	}
	block, bytes := make([]byte, blockBytes), 0
	for {
		if *write {
			if _, err := conn.Write(pattern); err != nil {
				return
			}
			continue
		}
		n, err := conn.Read(block)
		if err != nil {
			return
		}
		bytes += n
		if block[n-1] != pattern[(bytes-1)%blockBytes] {
			fail("byte arrived wrong", bytes-1)
		}
	}
}
