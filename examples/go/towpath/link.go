// Package towpath has what the four programs share: connections to Towpath's servers, and the records of numbered requests.
package towpath

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"syscall"
	"time"

	zmq "github.com/pebbe/zmq4"
)

const (
	messageBytesMax = 64 << 20
	heartbeat       = 2 * time.Second
	silence         = 8 * time.Second        // after which a server that answers no heartbeat counts as lost
	pause           = 300 * time.Millisecond // between connections
	linger          = time.Second
)

// ErrLost is a connection that has ended, or that couldn't be made.
var ErrLost = errors.New("the connection is lost")

// ErrTimeout is a Receive during which nothing came.
var ErrTimeout = errors.New("nothing came in time")

// Keys are those of CURVE, in Z85.
type Keys struct{ public, secret, server string }

// ReadKeys reads a client's secret key and a server's public key from the files of `tow key`. No files are no keys: nil.
func ReadKeys(files []string) (*Keys, error) {
	if len(files) == 0 {
		return nil, nil
	}
	if len(files) != 2 {
		return nil, errors.New("CURVE needs two files: the client's secret key and the server's public key")
	}
	own, err := os.ReadFile(files[0])
	if err != nil {
		return nil, err
	}
	server, err := os.ReadFile(files[1])
	if err != nil {
		return nil, err
	}
	keys := &Keys{field(own, "public-key"), field(own, "secret-key"), field(server, "public-key")}
	if keys.public == "" || keys.secret == "" || keys.server == "" {
		return nil, fmt.Errorf("%s has no secret key, or %s no public one", files[0], files[1])
	}
	return keys, nil
}

// field is the value of a line such as `public-key = "..."`, or empty.
func field(file []byte, name string) string {
	found := regexp.MustCompile(`(?m)^\s*` + name + `\s*=\s*"(.{40})"`).FindSubmatch(file)
	if found == nil {
		return ""
	}
	return string(found[1])
}

// A Link is one connection. libzmq would make the next one without a word; here its end is ErrLost, since what was asked for must be
// asked for again.
type Link struct {
	context         *zmq.Context
	dealer, monitor *zmq.Socket
	poller          *zmq.Poller
	endpoint        string
}

// Where the dealer says what becomes of its connection, within its context.
const events = "inproc://events"

func open(endpoint string, keys *Keys) (*Link, error) {
	link := &Link{poller: zmq.NewPoller(), endpoint: endpoint}
	if err := link.connect(keys); err != nil {
		link.close(0)
		return nil, fmt.Errorf("%s: %w", endpoint, err)
	}
	link.poller.Add(link.dealer, zmq.POLLIN)
	link.poller.Add(link.monitor, zmq.POLLIN)
	return link, nil
}

func (link *Link) connect(keys *Keys) (err error) {
	if link.context, err = zmq.NewContext(); err != nil {
		return err
	}
	if link.dealer, err = link.context.NewSocket(zmq.DEALER); err != nil {
		return err
	}
	if link.monitor, err = link.context.NewSocket(zmq.PAIR); err != nil {
		return err
	}
	if keys != nil {
		if err = link.dealer.ClientAuthCurve(keys.server, keys.public, keys.secret); err != nil {
			return err
		}
	}
	return errors.Join(
		link.dealer.SetSndhwm(0), // how much is in flight is up to the programs
		link.dealer.SetMaxmsgsize(messageBytesMax),
		link.dealer.SetReconnectIvl(-1),
		link.dealer.SetLinger(0), // of a connection that is lost
		link.dealer.SetHeartbeatIvl(heartbeat),
		link.dealer.SetHeartbeatTimeout(silence),
		link.dealer.Monitor(events, zmq.EVENT_DISCONNECTED|zmq.EVENT_CLOSED|
			zmq.EVENT_HANDSHAKE_FAILED_AUTH|zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL),
		link.monitor.Connect(events),
		link.dealer.Connect(link.endpoint),
	)
}

// close waits as long as linger for the server to take what was sent.
func (link *Link) close(linger time.Duration) {
	if link.dealer != nil {
		// First: libzmq's thread would wait for ever for somebody to take its events.
		link.dealer.Monitor("", 0)
		link.dealer.SetLinger(linger)
		link.dealer.Close()
	}
	if link.monitor != nil {
		link.monitor.Close()
	}
	if link.context != nil {
		link.context.Term()
	}
}

// Send queues a message. It never waits: without a limit to the queue there is only no place for it when there is no connection.
func (link *Link) Send(frames ...any) error {
	_, err := link.dealer.SendMessageDontwait(frames...)
	if zmq.AsErrno(err) == zmq.Errno(syscall.EAGAIN) {
		return ErrLost
	}
	return err
}

// Receive waits for a message; a timeout below 0 is none. ErrLost, ErrTimeout, or the reason for which the server refuses us.
func (link *Link) Receive(timeout time.Duration) ([][]byte, error) {
	ready, err := link.poller.Poll(timeout)
	if err != nil {
		return nil, err
	}
	if len(ready) == 0 {
		return nil, ErrTimeout
	}
	// What came before the end counts, so the dealer goes first.
	if ready[0].Socket == link.dealer {
		return link.dealer.RecvMessageBytes(0)
	}
	event, _, value, err := link.monitor.RecvEvent(0)
	switch {
	case err != nil:
		return nil, err
	case event&zmq.EVENT_HANDSHAKE_FAILED_AUTH != 0:
		return nil, fmt.Errorf("%s refuses us (%d): the client's key, or the server's, isn't the right one", link.endpoint, value)
	case event&zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL != 0:
		return nil, fmt.Errorf("%s refuses us (%#x): only one side has keys, or it isn't Towpath", link.endpoint, value)
	}
	return nil, ErrLost
}

// Keep runs a session over a connection, and again over the next when that is lost: to the next endpoint, in turn.
func Keep(endpoints []string, keys *Keys, session func(*Link) error) error {
	for turn := 0; ; turn++ {
		link, err := open(endpoints[turn%len(endpoints)], keys)
		if err != nil {
			return err
		}
		err = session(link)
		if !errors.Is(err, ErrLost) {
			link.close(linger)
			return err
		}
		link.close(0)
		fmt.Fprintf(os.Stderr, "%s: %v\n", link.endpoint, err)
		time.Sleep(pause)
	}
}
