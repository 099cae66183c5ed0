package towpath

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// First frames of messages.
const (
	ClientHeader = "TWPC02"
	WorkerHeader = "TWPW02"
)

// Kinds of records that a broker sends.
const (
	Welcome       = 0x41
	Reply         = 0x42
	Accepted      = 0x43
	Refused       = 0x44
	WorkerWelcome = 0xC1
	WorkerRequest = 0xC2
	WorkerCancel  = 0xC3
	Leave         = 0xC4
	Identity      = 0xC5
)

// Flags of records with a body.
const (
	several  = 1
	attached = 2
	partial  = 4
	Volatile = 8
	Resent   = 16
)

const (
	framesMax    = 1000
	attachBytes  = 4096      // larger bodies are a frame of their own
	blockBytes   = 256 << 10 // of records that are sent as one message
	tokenBytes   = 16
	serviceBytes = 255
)

// ErrMalformed is a message that isn't as the protocol says.
var ErrMalformed = errors.New("a message is malformed")

// A Record of a broker. Which fields count depends on its kind.
type Record struct {
	Kind    byte
	Number  uint64 // of a request; epoch of a welcome; first of those accepted
	Count   uint32 // accepted; requests that a client may have outstanding
	Bytes   uint64 // that a client may have outstanding
	Journal bool
	Token   []byte
	ID      []byte
	Status  uint16
	Attempt uint16
	Millis  uint32 // until a refused request may be sent again; that are left of a worker's request
	HasPart bool
	Part    uint32
	Body    [][]byte
	Reason  string
}

// cursor reads integers and bytes, and remembers when there were too few.
type cursor struct {
	data  []byte
	short bool
}

func (c *cursor) bytes(count int) []byte {
	if count > len(c.data) {
		c.short, c.data = true, nil
		return make([]byte, min(count, tokenBytes))
	}
	taken := c.data[:count]
	c.data = c.data[count:]
	return taken
}

func (c *cursor) u8() byte    { return c.bytes(1)[0] }
func (c *cursor) u16() uint16 { return binary.BigEndian.Uint16(c.bytes(2)) }
func (c *cursor) u32() uint32 { return binary.BigEndian.Uint32(c.bytes(4)) }
func (c *cursor) u64() uint64 { return binary.BigEndian.Uint64(c.bytes(8)) }

// Decode returns the records of a message from a broker, to a client or to a worker.
func Decode(message [][]byte, header string) ([]Record, error) {
	if len(message) < 2 || len(message) > 3 || string(message[0]) != header {
		return nil, fmt.Errorf("%w: is it a broker of numbered requests?", ErrMalformed)
	}
	var records []Record
	block, attachment := &cursor{data: message[1]}, message[2:]
	for len(block.data) > 0 {
		record := Record{Kind: block.u8()}
		// Records for workers have the highest bit.
		if (record.Kind >= 0x80) != (header == WorkerHeader) {
			return nil, ErrMalformed
		}
		var err error
		if attachment, err = record.decode(block, attachment); err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	if len(attachment) > 0 {
		return nil, ErrMalformed
	}
	return records, nil
}

// decode reads what follows the kind, and returns the attachment if the record hasn't taken it.
func (r *Record) decode(block *cursor, attachment [][]byte) ([][]byte, error) {
	var flags, known byte
	switch r.Kind {
	case Welcome:
		r.Number, r.Count, r.Bytes, r.Journal = block.u64(), block.u32(), block.u64(), block.u8()&1 != 0
	case Reply:
		known = several | attached | partial
		flags, r.Number, r.Status = block.u8(), block.u64(), block.u16()
		if r.HasPart = flags&partial != 0; r.HasPart {
			r.Part = block.u32()
		}
	case Accepted:
		r.Number, r.Count = block.u64(), block.u32()
	case Refused:
		r.Number, r.Status, r.Millis = block.u64(), block.u16(), block.u32()
		r.Reason = string(block.bytes(int(block.u8())))
	case WorkerWelcome:
		r.Number = block.u64()
	case WorkerRequest:
		known = several | attached
		flags, r.Token, r.Attempt, r.Millis = block.u8(), block.bytes(tokenBytes), block.u16(), block.u32()
	case WorkerCancel:
		r.Token = block.bytes(tokenBytes)
	case Identity:
		r.Token, r.ID = block.bytes(tokenBytes), block.bytes(tokenBytes)
	case Leave:
	default:
		return nil, ErrMalformed
	}
	if r.Kind == Reply || r.Kind == WorkerRequest {
		length := block.u32()
		body := block.bytes(int(length))
		if flags&attached != 0 {
			if length != 0 || len(attachment) == 0 || len(block.data) != 0 {
				return nil, ErrMalformed
			}
			body, attachment = attachment[0], nil
		}
		r.Body = [][]byte{body}
		if flags&several != 0 {
			r.Body = split(body)
		}
		if flags&^known != 0 || len(r.Body) == 0 {
			return nil, ErrMalformed
		}
	}
	if block.short {
		return nil, ErrMalformed
	}
	return attachment, nil
}

// split returns the frames of a body that has several; none if they are malformed.
func split(body []byte) [][]byte {
	var frames [][]byte
	rest := &cursor{data: body}
	for len(rest.data) > 0 && len(frames) < framesMax {
		frames = append(frames, rest.bytes(int(rest.u32())))
	}
	if rest.short || len(rest.data) > 0 {
		return nil
	}
	return frames
}

// Hello begins a client's connection: numbers below the first are settled.
func Hello(client []byte, first uint64) []byte {
	return binary.BigEndian.AppendUint64(append([]byte{0x01}, client...), first)
}

// Request returns a record and its attachment, which may be nil. A ttl of 0 is the broker's.
func Request(number uint64, service string, ttlMillis uint32, flags byte, body ...[]byte) (record, attachment []byte) {
	record = binary.BigEndian.AppendUint64([]byte{0x02, flags}, number)
	record = binary.BigEndian.AppendUint32(record, ttlMillis)
	service = service[:min(len(service), serviceBytes)]
	record = append(append(record, byte(len(service))), service...)
	return withBody(record, body)
}

// Confirm lets the broker forget the outcomes of so many numbers.
func Confirm(first uint64, count uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64([]byte{0x03}, first), count)
}

// Cancel ends a request.
func Cancel(number uint64) []byte { return binary.BigEndian.AppendUint64([]byte{0x04}, number) }

// Ready begins a worker's connection: it takes as many requests at a time as its credit.
func Ready(credit uint32, service string) []byte {
	service = service[:min(len(service), serviceBytes)]
	record := binary.BigEndian.AppendUint32([]byte{0x81}, credit)
	return append(append(record, byte(len(service))), service...)
}

// WorkerReply returns a record and its attachment, which may be nil. A part that isn't the last has a number.
func WorkerReply(token []byte, status uint16, part *uint32, body ...[]byte) (record, attachment []byte) {
	record = binary.BigEndian.AppendUint16(append([]byte{0x82, 0}, token...), status)
	if part != nil {
		record[1] |= partial
		record = binary.BigEndian.AppendUint32(record, *part)
	}
	return withBody(record, body)
}

// Credit is how many requests a worker takes from now on.
func Credit(credit uint32) []byte { return binary.BigEndian.AppendUint32([]byte{0x83}, credit) }

// Leaving asks for no more requests.
func Leaving() []byte { return []byte{0x84} }

// Return gives a request back that the worker can't begin.
func Return(token []byte, reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	return append(append(append([]byte{0x85}, token...), byte(len(reason))), reason...)
}

// withBody ends a record, whose second byte are its flags.
func withBody(record []byte, frames [][]byte) ([]byte, []byte) {
	if len(frames) == 1 && len(frames[0]) > attachBytes {
		record[1] |= attached
		return append(record, 0, 0, 0, 0), frames[0]
	}
	var body []byte
	if len(frames) == 1 {
		body = frames[0]
	} else if len(frames) > 1 {
		record[1] |= several
		for _, frame := range frames {
			body = append(binary.BigEndian.AppendUint32(body, uint32(len(frame))), frame...)
		}
	}
	return append(binary.BigEndian.AppendUint32(record, uint32(len(body))), body...), nil
}

// Blocks sends records, many to a message.
type Blocks struct {
	Link   *Link
	Header string
	block  []byte
}

// Add queues a record. An attachment, or a full block, is sent at once.
func (b *Blocks) Add(record, attachment []byte) error {
	b.block = append(b.block, record...)
	if attachment != nil {
		block := b.block
		b.block = nil
		return b.Link.Send(b.Header, block, attachment)
	}
	if len(b.block) >= blockBytes {
		return b.Flush()
	}
	return nil
}

// Flush sends what is queued.
func (b *Blocks) Flush() error {
	if len(b.block) == 0 {
		return nil
	}
	block := b.block
	b.block = nil
	return b.Link.Send(b.Header, block)
}
