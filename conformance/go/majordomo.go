// An MDP/0.1 client and worker with go-zeromq, from the tables of the protocol.
package main

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/go-zeromq/zmq4"
)

// Sends requests one after another on a REQ and expects each back as it was.
func request(endpoint, service string, count int) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req := zmq4.NewReq(ctx)
	defer req.Close()
	if err := req.Dial(endpoint); err != nil {
		return err
	}
	for index := range count {
		body := []byte(fmt.Sprintf("request %d", index))
		sent := [][]byte{[]byte("MDPC01"), []byte(service), body, {}, bytes.Repeat(body, index*index)}
		if err := req.SendMulti(zmq4.NewMsgFrom(sent...)); err != nil {
			return err
		}
		reply, err := req.Recv()
		if err != nil {
			return err
		}
		if len(reply.Frames) != len(sent) {
			return fmt.Errorf("%d frames came back of %d", len(reply.Frames), len(sent))
		}
		for position, frame := range reply.Frames {
			if !bytes.Equal(frame, sent[position]) {
				return fmt.Errorf("frame %d came back as %q", position, frame)
			}
		}
	}
	return nil
}

// Echoes what it is asked for, until it is killed.
func work(endpoint, service string) error {
	dealer := zmq4.NewDealer(context.Background())
	defer dealer.Close()
	if err := dealer.Dial(endpoint); err != nil {
		return err
	}
	send := func(command byte, frames ...[]byte) error {
		head := [][]byte{{}, []byte("MDPW01"), {command}}
		return dealer.SendMulti(zmq4.NewMsgFrom(append(head, frames...)...))
	}
	if err := send(1, []byte(service)); err != nil {
		return err
	}
	for {
		message, err := dealer.Recv()
		if err != nil {
			return err
		}
		switch frames := message.Frames; frames[2][0] {
		case 2: // request: address, an empty frame, body
			err = send(3, frames[3:]...)
		case 4: // heartbeat
			err = send(4)
		default:
			return fmt.Errorf("command %d", frames[2][0])
		}
		if err != nil {
			return err
		}
	}
}
