// call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES sends a numbered request for each line, and prints
// NUMBER STATUS REPLY as the replies come. When a broker is lost, what has no outcome goes to the next, under the same numbers.
package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"strings"
	"time"

	"towpath.example/towpath"
)

// Requests that may wait for their outcome.
const ahead = 1000

// When a request is sent that has been sent.
var never = time.Unix(1<<40, 0)

type request struct {
	body    []byte
	due     time.Time // when to send it
	resent  bool      // it was sent over an earlier connection
	parts   []byte    // of the reply
	settled bool
}

type caller struct {
	id       []byte
	service  string
	requests []request // the first has number 1
	first    int       // all before it are settled
	failed   bool
}

// session goes on until every request has its outcome.
func (c *caller) session(link *towpath.Link) error {
	for n := range c.requests {
		request := &c.requests[n]
		request.resent = request.resent || request.due == never
		request.due, request.parts = time.Time{}, nil
	}
	blocks := towpath.Blocks{Link: link, Header: towpath.ClientHeader}
	if err := blocks.Add(towpath.Hello(c.id, uint64(c.first+1)), nil); err != nil {
		return err
	}
	for c.first < len(c.requests) {
		wait, err := c.send(&blocks)
		if err != nil {
			return err
		}
		message, err := link.Receive(wait)
		if errors.Is(err, towpath.ErrTimeout) {
			continue // one is due again
		}
		if err != nil {
			return err
		}
		if err := c.receive(message, &blocks); err != nil {
			return err
		}
	}
	return blocks.Flush()
}

// send sends what is due, and returns how long until something else is: below 0 for ever.
func (c *caller) send(blocks *towpath.Blocks) (time.Duration, error) {
	now, next := time.Now(), never
	for n := c.first; n < min(c.first+ahead, len(c.requests)); n++ {
		request := &c.requests[n]
		if request.settled {
			continue
		}
		if !request.due.After(now) {
			var flags byte
			if request.resent {
				flags = towpath.Resent
			}
			request.due = never
			if err := blocks.Add(towpath.Request(uint64(n+1), c.service, 0, flags, request.body)); err != nil {
				return 0, err
			}
		} else if request.due.Before(next) {
			next = request.due
		}
	}
	if next == never {
		return -1, blocks.Flush()
	}
	return next.Sub(now), blocks.Flush()
}

func (c *caller) receive(message [][]byte, blocks *towpath.Blocks) error {
	records, err := towpath.Decode(message, towpath.ClientHeader)
	if err != nil {
		return err
	}
	for _, record := range records {
		if record.Kind != towpath.Reply && record.Kind != towpath.Refused {
			continue
		}
		index := record.Number - 1
		if index >= uint64(len(c.requests)) || c.requests[index].settled {
			continue
		}
		request, body := &c.requests[index], bytes.Join(record.Body, nil)
		switch {
		case record.HasPart:
			request.parts = append(request.parts, body...)
			continue
		case record.Kind == towpath.Refused && record.Millis > 0:
			request.due = time.Now().Add(time.Duration(record.Millis) * time.Millisecond)
			continue
		case record.Kind == towpath.Refused:
			body = []byte(record.Reason)
		case record.Status == 206: // its parts were sent over an earlier connection
			record.Status = 410
		}
		c.failed = c.failed || record.Status != 200
		fmt.Printf("%d %d %s%s\n", record.Number, record.Status, request.parts, body)
		request.settled, request.parts = true, nil
		if err := blocks.Add(towpath.Confirm(record.Number, 1), nil); err != nil {
			return err
		}
	}
	for c.first < len(c.requests) && c.requests[c.first].settled {
		c.first++
	}
	return nil
}

func run(arguments []string) error {
	if len(arguments) < 2 {
		return errors.New("usage: call ENDPOINT[,ENDPOINT...] SERVICE [SECRET-KEY-FILE SERVER-KEY-FILE] <LINES")
	}
	keys, err := towpath.ReadKeys(arguments[2:])
	if err != nil {
		return err
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	caller := caller{id: make([]byte, 16), service: arguments[1]}
	if _, err := rand.Read(caller.id); err != nil {
		return err
	}
	for line := range bytes.Lines(input) {
		caller.requests = append(caller.requests, request{body: bytes.TrimSuffix(line, []byte("\n"))})
	}
	if err := towpath.Keep(strings.Split(arguments[0], ","), keys, caller.session); err != nil {
		return err
	}
	if caller.failed {
		return errors.New("some requests failed")
	}
	return nil
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}
